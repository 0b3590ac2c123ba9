"""Ordinary command lines of training: real programs with options that they have, and no secrets.

Which options stand on a line is drawn from a seed: 500 lines, the same each time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

_N_LINES: Final = 500
_MOST_OPTIONS: Final = 7

_LAUNCHERS: Final = (
    "",
    "torchrun --nproc-per-node 8",
    "torchrun --nnodes=4 --nproc_per_node=8 --rdzv-id=job1234 --rdzv-backend=c10d"
    " --rdzv-endpoint=node0:29500",
    "python -m torch.distributed.run --standalone --nproc-per-node gpu",
    "srun -N 4 --ntasks-per-node=8 --gpus-per-task=1 --cpu-bind=none -p gpu",
    "srun --export=ALL,NCCL_DEBUG=INFO --container-image=nvcr.io/nvidia/pytorch:24.05-py3",
    "mpirun -np 16 -H a:8,b:8 -x NCCL_IB_HCA=mlx5_0 -x PATH --mca btl ^openib",
    "horovodrun -np 4 -H localhost:4",
    "deepspeed --num_gpus=8 --master_port 29501",
    "accelerate launch --mixed_precision bf16 --num_processes 8 --config_file acc.yaml",
    "docker run --rm --gpus all --ipc=host --shm-size 16g -v /data:/data -e OMP_NUM_THREADS=8"
    " nvcr.io/nvidia/pytorch:24.05-py3",
    "docker run -u 1000:1000 -p 6006:6006 --name train --network host img:latest",
    "nsys profile -t cuda,nvtx,osrt -o out --capture-range=cudaProfilerApi",
    "ncu --set full -k regex:gemm -c 10 -o out",
    "kubectl exec -n team pod-0 -c main --",
    "singularity exec --nv -B /scratch pytorch.sif",
    "numactl --cpunodebind=0 --membind=0",
    "CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=4",
    "env NCCL_DEBUG=WARN TOKENIZERS_PARALLELISM=false PYTHONHASHSEED=0",
    "nohup nice -n 10",
)
_PROGRAMS: Final[dict[str, Sequence[str]]] = {
    "python run_glue.py": (
        *("--model_name_or_path bert-base-cased", "--task_name mrpc", "--do_train", "--do_eval"),
        *("--max_seq_length 128", "--per_device_train_batch_size 32", "--learning_rate 2e-5"),
        *("--num_train_epochs 3", "--output_dir /tmp/mrpc", "--overwrite_output_dir"),
        *("--cache_dir ~/.cache/huggingface", "--tokenizer_name bert-base-cased", "--fp16"),
        *("--use_fast_tokenizer True", "--use_auth_token False", "--hub_private_repo false"),
        *("--model_revision 5d12f1a2c3b4e5f60718293a4b5c6d7e8f901234", "--report_to none"),
        *("--logging_steps 10", "--pad_to_max_length true", "--group_by_length", "--seed 42"),
    ),
    "python run_clm.py": (
        *("--model_name_or_path meta-llama/Llama-2-7b-hf", "--dataset_name wikitext"),
        *("--dataset_config_name wikitext-2-raw-v1", "--block_size 1024", "--bf16"),
        *("--gradient_checkpointing", "--torch_compile", "--save_strategy steps"),
        *("--max_steps 1000", "--warmup_ratio 0.03", "--lr_scheduler_type cosine", "--tf32 True"),
        *("--deepspeed ds_config_zero3.json", "--ddp_find_unused_parameters False"),
    ),
    "python pretrain_gpt.py": (
        *("--tensor-model-parallel-size 4", "--pipeline-model-parallel-size 2", "--num-layers 24"),
        *(
            "--hidden-size 1024",
            "--num-attention-heads 16",
            "--seq-length 2048",
            "--micro-batch-size 4",
        ),
        *("--global-batch-size 512", "--train-iters 500000", "--lr 1.5e-4", "--min-lr 1.0e-5"),
        *("--vocab-file gpt2-vocab.json", "--merge-file gpt2-merges.txt", "--split 949,50,1"),
        *("--data-path my-gpt2_text_document", "--tokenizer-type GPT2BPETokenizer"),
        *("--eod-mask-loss", "--reset-position-ids", "--kv-channels 64", "--num-query-groups 8"),
        *("--log-interval 100", "--save checkpoints/345m", "--distributed-backend nccl"),
        *("--group-query-attention", "--attention-softmax-in-fp32", "--use-flash-attn"),
        *("--make-vocab-size-divisible-by 128", "--eval-iters 10", "--sequence-parallel"),
    ),
    "fairseq-train data-bin/wmt16_en_de": (
        *("--arch transformer_wmt_en_de", "--share-all-embeddings", "--optimizer adam"),
        *("--adam-betas '(0.9, 0.98)'", "--clip-norm 0.0", "--lr-scheduler inverse_sqrt"),
        *("--warmup-updates 4000", "--max-tokens 4096", "--dropout 0.3", "--label-smoothing 0.1"),
        *("--encoder-attention-heads 8", "--keep-last-epochs 5", "--no-epoch-checkpoints"),
        *("--skip-invalid-size-inputs-valid-test", "--left-pad-source False", "--update-freq 4"),
    ),
    "python train.py /data/imagenet": (
        *("--model resnet50", "-b 256", "--sched cosine", "--epochs 200", "--opt rmsproptf"),
        *("--aa rand-m9-mstd0.5-inc1", "--remode pixel", "--reprob 0.2", "--amp", "-j 8"),
        *("--log-wandb", "--experiment run-7", "--model-ema", "--crop-pct 0.95", "--pin-mem"),
        *("--num-classes 1000", "--class-map map.txt", "--channels-last", "--checkpoint-hist 3"),
    ),
    "python main.py -a resnet18": (
        *(
            "--dist-url tcp://127.0.0.1:29500",
            "--dist-backend nccl",
            "--multiprocessing-distributed",
        ),
        *("--world-size 1", "--rank 0", "-p 10", "-b 128", "--lr 0.1", "--wd 1e-4", "--pretrained"),
        *("--resume model_best.pth.tar", "--print-freq 50", "--evaluate", "--seed 7", "-j 16"),
    ),
    "python tools/train.py configs/mask_rcnn_r50_fpn_1x_coco.py": (
        *(
            "--work-dir work_dirs/a",
            "--amp",
            "--resume auto",
            "--launcher pytorch",
            "--auto-scale-lr",
        ),
        *("--cfg-options optim_wrapper.optimizer.lr=0.01 train_dataloader.batch_size=4",),
        *("--cfg-options model.backbone.init_cfg.checkpoint=torchvision://resnet50",),
    ),
    "python train_net.py": (
        *("--config-file configs/COCO-Detection/faster_rcnn_R_50_FPN_1x.yaml", "--num-gpus 8"),
        *(
            "--dist-url auto",
            "--eval-only",
            "MODEL.WEIGHTS /models/R-50.pkl",
            "SOLVER.BASE_LR 0.02",
        ),
        *("SOLVER.IMS_PER_BATCH 16", "MODEL.KEYPOINT_ON True", "INPUT.MASK_FORMAT bitmask"),
        *("DATASETS.TRAIN \"('keypoints_coco_2017_train',)\"",),
    ),
    "python train.py config/train_gpt2.py": (
        *("--batch_size=32", "--compile=False", "--block_size=1024", "--n_layer=12", "--n_head=12"),
        *("--n_embd=768", "--dtype=bfloat16", "--wandb_log=True", "--wandb_project=owt"),
        *("--wandb_run_name=gpt2-124M", "--init_from=resume", "--always_save_checkpoint=False"),
    ),
    "python examples/nlp/language_modeling/megatron_gpt_pretraining.py": (
        *(
            "trainer.devices=8",
            "trainer.num_nodes=2",
            "trainer.precision=bf16",
            "model.mcore_gpt=True",
        ),
        *("model.data.data_prefix=[1.0,/data/my-gpt3_text_document]", "model.optim.lr=2e-4"),
        *(
            "model.tokenizer.vocab_file=/v.json",
            "model.encoder_seq_length=2048",
            "++model.nsys_profile.enabled=True",
        ),
        *("exp_manager.explicit_log_dir=/results", "exp_manager.create_wandb_logger=False"),
        *("+model.key_value_heads=8", "~model.dist_ckpt_format", "hydra.run.dir=/tmp/h"),
    ),
    "python cli.py fit": (
        *(
            "--config config.yaml",
            "--trainer.max_epochs 10",
            "--trainer.devices 4",
            "--data.num_workers=8",
        ),
        *("--model.encoder.dim=512", "--trainer.logger=TensorBoardLogger", "--ckpt_path last"),
        *("--optimizer.class_path=torch.optim.AdamW", "--trainer.callbacks+=LearningRateMonitor"),
    ),
    "python train_dreambooth.py": (
        *("--pretrained_model_name_or_path CompVis/stable-diffusion-v1-4", "--resolution 512"),
        *("--instance_data_dir dog", "--instance_prompt 'a photo of sks dog'", "--use_8bit_adam"),
        *("--train_text_encoder", "--prior_loss_weight 1.0", "--checkpointing_steps 500"),
        *("--validation_prompt 'A photo of sks dog in a bucket'", "--snr_gamma 5.0", "--seed 0"),
    ),
    "python -m vllm.entrypoints.openai.api_server": (
        *("--model mistralai/Mistral-7B-v0.1", "--tensor-parallel-size 2", "--max-model-len 8192"),
        *("--gpu-memory-utilization 0.9", "--port 8000", "--served-model-name m", "--dtype half"),
        *("--max-num-batched-tokens 8192", "--enable-prefix-caching", "--kv-cache-dtype fp8"),
        *("--tokenizer-mode auto", "--disable-log-requests", "--num-speculative-tokens 5"),
    ),
    "python benchmark.py": (
        *("--iters 100", "--warmup 10", "--op all_reduce", "--minbytes 8", "--maxbytes 8G", "-f 2"),
        *("--dtype float32", "--check 1", "-g 8", "--csv out.csv", "--input-shapes 32x3x224x224"),
        *(
            "--hash 9f86d081884c7d659a2feaa0c55ad015",
            "--commit 1a2b3c4d5e6f708192a3b4c5d6e7f80912345678",
        ),
        *(
            "--date 2026-01-31T12:30:01",
            "--tag v1.2.3-rc1+cu121",
            "--uuid GPU-5e0a1b2c-3d4e-5f60-7182-93a4b5c6d7e8",
        ),
    ),
    "python train_ppo.py": (
        *("--env-id BreakoutNoFrameskip-v4", "--total-timesteps 10000000", "--num-envs 8"),
        *(
            "--clip-coef 0.1",
            "--ent-coef 0.01",
            "--track false",
            "--capture-video",
            "--gae-lambda 0.95",
        ),
        *("--kl_ctl 0.05", "--reward_model_path rm/", "--max_new_tokens 128", "--pad_token_id 0"),
    ),
    "python dlrm_s_pytorch.py": (
        *(
            "--arch-sparse-feature-size=128",
            '--arch-mlp-bot="13-512-256-128"',
            "--data-generation=dataset",
        ),
        *(
            "--arch-embedding-size 1460-583-10131227-2202608",
            "--max-ind-range=40000000",
            "--mlperf-logging",
        ),
        *(
            "--raw-data-file=/data/day",
            "--processed-data-file=/data/terabyte_processed.npz",
            "--bf16",
        ),
    ),
    "xgboost_train": (
        *(
            "--tree_method gpu_hist",
            "--max_depth 8",
            "--sort-key 3",
            "--key-columns a,b",
            "--objective reg:squarederror",
        ),
        *(
            "--monotone_constraints '(1,-1)'",
            "--eval_metric auc",
            "--num-keys 12",
            "--keypoints 17",
        ),
    ),
    "python convert_checkpoint.py": (
        *("--src s3://bucket/models/step_1000/model-00001-of-00003.safetensors", "--dst gs://b/x"),
        *(
            "--map-keys 'module.->'",
            "--ignore-keys optimizer,scheduler",
            "--strict",
            "--key model_state_dict",
        ),
        *(
            "--url https://host.example/path/file.tar.gz?download=1&version=2",
            "--format safetensors",
        ),
    ),
}


def ordinary_lines() -> list[str]:
    """Return 500 lines, no two alike."""
    rng = random.Random("ordinary")
    lines: dict[str, None] = {}
    programs = list(_PROGRAMS)
    while len(lines) < _N_LINES:
        program = programs[len(lines) % len(programs)]
        options = _PROGRAMS[program]
        chosen = rng.sample(options, min(len(options), rng.randint(2, _MOST_OPTIONS)))
        launcher = rng.choice(_LAUNCHERS)
        lines[" ".join(filter(None, (launcher, program, *chosen)))] = None
    return list(lines)
