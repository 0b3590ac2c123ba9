"""Names of the phases of post-training, and the calls and timers of libraries that name them."""

GENERATION, LOGPROBS, REWARD, WEIGHTS = "generation", "logprobs", "reward", "weight_sync"
ADVANTAGE, ENGINE, UPDATE, ENVIRONMENT = "advantage", "sleep_wake", "update", "environment"
ROLLOUT, USED, UNUSED = "rollout", "rollout.used", "rollout.unused"
RUNNING = "generation.running"
_MODELS_OF_REWARDS = ("Reward", "SequenceClassification")
_MODELS_OF_VALUES = ("Value", "Critic", "TokenClassification")
ENGINE_STEPS = ("vllm.v1.engine.llm_engine", "LLMEngine", "step")

_OPENRLHF = "openrlhf.trainer."
# (module, class, function): phase
CALLS = {
    ("transformers.generation.utils", "GenerationMixin", "generate"): GENERATION,
    ("trl.trainer.grpo_trainer", "GRPOTrainer", "_generate"): GENERATION,
    ("trl.trainer.rloo_trainer", "RLOOTrainer", "_generate"): GENERATION,
    ("vllm.entrypoints.llm", "LLM", "generate"): GENERATION,
    ("vllm.entrypoints.llm", "LLM", "chat"): GENERATION,
    ("vllm.entrypoints.llm", "LLM", "sleep"): ENGINE,
    ("vllm.entrypoints.llm", "LLM", "wake_up"): ENGINE,
    ("sglang.srt.entrypoints.engine", "Engine", "generate"): GENERATION,
    ("sglang.srt.entrypoints.engine", "Engine", "update_weights_from_tensor"): WEIGHTS,
    ("sglang.srt.entrypoints.engine", "Engine", "update_weights_from_distributed"): WEIGHTS,
    ("sglang.srt.entrypoints.engine", "Engine", "update_weights_from_disk"): WEIGHTS,
    ("sglang.srt.entrypoints.engine", "Engine", "release_memory_occupation"): ENGINE,
    ("sglang.srt.entrypoints.engine", "Engine", "resume_memory_occupation"): ENGINE,
    (_OPENRLHF + "ppo_utils.samples_generator", "SamplesGenerator", "generate_samples"): GENERATION,
    (_OPENRLHF + "ppo_trainer", "BasePPOTrainer", "broadcast_to_vllm"): WEIGHTS,
    (_OPENRLHF + "ppo_utils.experience_maker", "SamplesGenerator", "generate_samples"): GENERATION,
    (
        _OPENRLHF + "ppo_utils.experience_maker",
        "RemoteExperienceMaker",
        "make_experience",
    ): LOGPROBS,
    (
        _OPENRLHF + "ppo_utils.experience_maker",
        "RemoteExperienceMaker",
        "make_experience_batch",
    ): LOGPROBS,
    (
        _OPENRLHF + "ppo_utils.experience_maker",
        "RemoteExperienceMaker",
        "compute_advantages_and_returns",
    ): ADVANTAGE,
    (_OPENRLHF + "ppo_trainer", "BasePPOTrainer", "ppo_train"): UPDATE,
    (_OPENRLHF + "ray.ppo_actor", "ActorPPOTrainer", "ppo_train"): UPDATE,
    (_OPENRLHF + "ray.ppo_actor", "ActorPPOTrainer", "broadcast_to_vllm"): WEIGHTS,
    (_OPENRLHF + "ray.ppo_critic", "CriticPPOTrainer", "ppo_train"): UPDATE,
    ("gymnasium.vector.sync_vector_env", "SyncVectorEnv", "step"): ENVIRONMENT,
    ("gymnasium.vector.async_vector_env", "AsyncVectorEnv", "step"): ENVIRONMENT,
}
# verl's workers, which run in processes of their own
for _module in ("engine_workers", "fsdp_workers", "megatron_workers"):
    for _owner, _function, _phase in (
        ("ActorRolloutRefWorker", "generate_sequences", GENERATION),
        ("ActorRolloutRefWorker", "compute_log_prob", LOGPROBS),
        ("ActorRolloutRefWorker", "compute_ref_log_prob", LOGPROBS),
        ("ActorRolloutRefWorker", "update_actor", UPDATE),
        ("CriticWorker", "compute_values", LOGPROBS),
        ("CriticWorker", "update_critic", UPDATE),
        ("RewardModelWorker", "compute_rm_score", REWARD),
    ):
        CALLS["verl.workers." + _module, _owner, _function] = _phase
# (module, function or class whose call returns a context manager, argument with the name)
TIMERS = (
    ("trl.extras.profiling", "ProfilingContext", "name"),
    ("verl.utils.profiler.performance", "marked_timer", "name"),
    ("verl.utils.profiler.performance", "simple_timer", "name"),
    ("verl.utils.profiler.nvtx_profile", "marked_timer", "name"),
    ("verl.utils.debug.performance", "marked_timer", "name"),
    ("verl.utils.debug.performance", "simple_timer", "name"),
    ("verl.utils.debug.nvtx_profile", "marked_timer", "name"),
    ("nemo_rl.utils.timer", "Timer.time", "label"),
    ("nemo_rl.utils.timer", "ThreadSafeTimer.time", "label"),
    ("slime.utils.timer", "Timer.context", "name"),
    ("slime.observability.timer", "Timer.context", "name"),
    ("skyrl_train.utils.utils", "Timer", "message"),
    ("skyrl.train.utils.utils", "Timer", "message"),
)
# Last part of the name of a timer: phase
TIMED = {
    "gen": GENERATION,
    "gen_max": GENERATION,
    "old_log_prob": LOGPROBS,
    "ref": LOGPROBS,
    "values": LOGPROBS,
    "adv": ADVANTAGE,
    "reward": REWARD,
    "update_actor": UPDATE,
    "update_critic": UPDATE,
    "update_weights": WEIGHTS,
    "sync_rollout_weights": WEIGHTS,
    "testing": "eval",
    "_calculate_rewards": REWARD,
    "_get_per_token_logps_and_entropies": LOGPROBS,
    "sync_weights": WEIGHTS,
    "generate": GENERATION,
    "generate_batch": GENERATION,
    "generation": GENERATION,
    "policy_and_reference_logprobs": LOGPROBS,
    "reward_calculation": REWARD,
    "advantage_calculation": ADVANTAGE,
    "policy_training": UPDATE,
    "transfer_and_update_weights": WEIGHTS,
    "prepare_for_generation": WEIGHTS,
    "rollout": GENERATION,
    "ref_log_probs": LOGPROBS,
    "log_probs": LOGPROBS,
    "actor_train": UPDATE,
    "sleep": ENGINE,
    "wake_up": ENGINE,
    "fwd_logprobs_values_reward": LOGPROBS,
    "compute_advantages_and_returns": ADVANTAGE,
    "policy_train": UPDATE,
    "critic_train": UPDATE,
    "policy_critic_overlap_train": UPDATE,
    "sync_weights_to_inference_engines": WEIGHTS,
    "param_sync": WEIGHTS,
    "weight_sync": WEIGHTS,
    "switch_to_rollout": ENGINE,
    "switch_to_trainer": ENGINE,
    "offload_before_refit": ENGINE,
    "policy_offload_after_refit": ENGINE,
    "training_prep": ENGINE,
    "logprob_inference_prep": ENGINE,
    "exposed_generation": GENERATION,
    "generate_sequences": GENERATION,
    "value_inference": LOGPROBS,
    "teacher_logprob_inference": LOGPROBS,
    "compute_rewards": REWARD,
    "apply_reward_kl_penalty": REWARD,
    "calc_advantages_and_returns": ADVANTAGE,
    "calc_values_logprobs_rewards_kl": LOGPROBS,
    "value_training": UPDATE,
    "train_critic_and_policy": UPDATE,
    "total_validation_time": "eval",
    "eval": "eval",
}


def phase_of_scores(kind):
    """Return the phase of a pass over generated sequences, by the class of the model."""
    if any(word in kind for word in _MODELS_OF_VALUES):
        return "eval"
    return REWARD if any(word in kind for word in _MODELS_OF_REWARDS) else LOGPROBS
