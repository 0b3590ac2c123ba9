from traceprof.recording.masking import kept_variables


def test_only_variables_about_training_are_kept():
    kept = kept_variables(
        {
            "NCCL_DEBUG": "INFO",
            "RANK": "3",
            "SLURM_JOB_ID": "17",
            "SLURM_TOPOLOGY_ADDR": "core.leaf2.node7",
            "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
            "HOME": "/home/someone",
            "AWS_SECRET_ACCESS_KEY": "x",
            "SLURM_JWT": "eyJhbGciOi",
            "CUDA_API_KEY": "x",
            "TORCH_AUTH_TOKEN": "x",
            "NCCL_PROXY": "http://user:pw@proxy:3128",
            "TORCH_HUB": "hf_abcdefghijklmnop",
        }
    )
    assert kept == {
        "NCCL_DEBUG": "INFO",
        "RANK": "3",
        "SLURM_JOB_ID": "17",
        "SLURM_TOPOLOGY_ADDR": "core.leaf2.node7",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
        "NCCL_PROXY": "http://***@proxy:3128",
        "TORCH_HUB": "***",
    }
