"""Parts of the hooks that can be checked without torch."""

import ast
import inspect
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from traceprof.recording.program import INJECT_FOLDER


class Tensor:
    def __init__(self, *shape, device="cpu"):
        self.shape = shape
        self.device = Device(device)

    def dim(self):
        return len(self.shape)


@dataclass
class Device:
    type: str


TORCH = SimpleNamespace(Tensor=Tensor, device=Device)


@dataclass
class Batch:
    count: int
    images: Tensor


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (Tensor(8, 3, 32, 32), 8),
        ([Tensor(5, 3), Tensor(5)], 5),
        ({"ids": [[Tensor(4, 128)]], "mask": Tensor(9)}, 4),
        (Batch(3, Tensor(7)), 7),
        (("text", 3, Tensor(2)), 2),
        (Tensor(), 1),
        ("text", 0),
        ([[[[[Tensor(3)]]]]], 0),
    ],
)
def test_the_size_of_a_batch_is_the_first_dimension_of_its_first_tensor(runtime, batch, size):
    assert runtime("hook_loading").batch_size(TORCH, batch) == size


IMAGE = Tensor(3, 32, 30)
GRAPHS = Batch(0, Tensor(80, 16))


@pytest.mark.parametrize(
    ("batch", "n_drawn", "is_stream", "n"),
    [
        (Tensor(8, 3), 8, False, 8),
        (((IMAGE,) * 8, ("boxes",) * 8), 8, False, 8),  # of detection: images of different sizes
        (GRAPHS, 8, False, 8),  # laid end to end
        (["a text", "another"], 2, False, 2),
        (Tensor(16, 3), 8, False, 8),  # two views of each
        (Tensor(8, 3), 0, False, 8),  # not known
        (Tensor(5, 3), 8, True, 5),  # the last of a stream
        (Tensor(1024), 8, True, 8),
        (Tensor(1, 3), 1, False, 1),
        (Tensor(64, 3), 1, False, 64),  # the dataset makes batches
        ([Tensor(64, 3), Tensor(64)], 1, True, 64),
        (((IMAGE,), ("boxes",)), 1, False, 1),
        ([(IMAGE, "boxes")], 1, False, 1),
        ({"images": [IMAGE]}, 1, False, 1),
        ("text", 1, False, 1),
    ],
)
def test_a_batch_has_the_samples_that_were_drawn_for_it(runtime, batch, n_drawn, is_stream, n):
    assert runtime("hook_loading").n_samples(TORCH, batch, n_drawn, is_stream) == n


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("cuda", True),
        ("cuda:1", True),
        (0, True),
        (Device("cuda"), True),
        (Tensor(2, device="cuda"), True),
        ("cpu", False),
        (Device("cpu"), False),
        (None, False),
        (True, False),
        (Tensor(2), False),
    ],
)
def test_only_copies_to_a_gpu_get_a_range(runtime, target, expected):
    assert runtime("hook_calls").is_gpu(TORCH, target) is expected


@pytest.mark.parametrize(
    ("is_training", "has_gradients", "phases"),
    [
        (True, True, ["forward", "forward"]),
        (False, False, ["eval", "eval"]),
        (True, False, ["eval", "eval"]),  # validated in the mode for training
        (False, True, ["eval", "forward"]),  # statistics are frozen
    ],
)
def test_whether_a_forward_pass_trains(runtime, is_training, has_gradients, phases):
    passes = runtime("hook_passes")
    module = SimpleNamespace(training=is_training)
    found = []
    for _ in range(2):
        found.append(passes.phase_of(module, has_gradients))
        if has_gradients:
            passes.note_gradient_pass()
    assert found == phases


def test_modules_of_the_runtime_do_not_import_one_another_in_circles():
    folder = INJECT_FOLDER / "_traceprof_runtime"
    imports = {path.stem: _imports_in(path) for path in folder.glob("*.py")}
    while imports:
        free = [name for name, needed in imports.items() if not needed & imports.keys()]
        assert free, f"a circle among {sorted(imports)}"
        for name in free:
            del imports[name]


def _imports_in(path):
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if hasattr(node, "level")]
    return {name for node in nodes if node.level == 1 for name in _names_in(node)}


def _names_in(node):
    return [node.module] if node.module else [alias.name for alias in node.names]


def test_before_torch_has_a_test_for_compiling_the_compilers_own_is_taken(tmp_path):
    package = tmp_path / "torch" / "_dynamo"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "external_utils.py").write_text("def is_compiling():\n    return True\n")
    code = (
        "from types import SimpleNamespace\n"
        "from _traceprof_runtime.compiling import get_is_compiling\n"
        "test = get_is_compiling(SimpleNamespace())\n"
        "print(test())\n"
        "import torch._dynamo.external_utils as utils\n"
        "print(test(), type(utils.__loader__).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{INJECT_FOLDER}:{tmp_path}"},
    )
    assert done.stdout == "False\nTrue SourceFileLoader\n"


def test_what_runs_in_a_recorded_program_is_for_python_3_8_too():
    sources = list(INJECT_FOLDER.rglob("*.py"))
    assert len(sources) > 10
    for path in sources:
        ast.parse(path.read_text("utf-8"), str(path), feature_version=(3, 8))


@pytest.mark.parametrize(
    ("version", "is_initialized", "option"),
    [
        ("2.13.0+cpu", False, {}),
        ("2.13.0+cu130", True, {"use_device": "cuda"}),
        ("2.1.2+cu121", True, {"use_cuda": True}),
    ],
)
def test_the_profiler_sees_the_gpu_where_the_program_uses_it(
    runtime, version, is_initialized, option
):
    cuda = SimpleNamespace(is_initialized=lambda: is_initialized)
    torch = SimpleNamespace(__version__=version, cuda=cuda)
    assert runtime("hook_windows").device_option(torch) == option


@pytest.mark.parametrize("variable", ["NSYS_PROFILING_SESSION_ID", "NVPROF_ID"])
def test_no_window_is_opened_under_another_profiler(runtime, monkeypatch, capsys, variable):
    monkeypatch.setenv("TRACEPROF_WINDOWS", "5,10,200")
    monkeypatch.setenv(variable, "1")
    runtime("hook_windows").install_windows(None)  # it would need torch to go on
    assert "another profiler" in capsys.readouterr().err


def test_a_wrapped_step_keeps_its_parameters(runtime):
    """GradScaler looks for ``grad_scaler`` among them."""

    class Optimizer:
        def step(self, closure=None, grad_scaler=None):
            """Update."""

    def method(self, *args, **kwargs):
        return None

    wrapped = runtime("hook_optimizers").copy_attributes(method, Optimizer.step)
    assert list(inspect.signature(wrapped).parameters) == ["self", "closure", "grad_scaler"]
    assert (wrapped.__name__, wrapped.__doc__) == ("step", "Update.")
