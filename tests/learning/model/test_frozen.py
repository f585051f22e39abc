"""What is frozen: in the module and in its file, and nowhere else."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.autograd import backward

from peer.errors import InputError
from peer.learning.export import load_model, save_model
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.settings import ModelSettings
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.trainer import has_batch_norm

IMAGES = Example.zeros((1, 8, 8), 3)


def backbone() -> nn.Sequential:
    torch.manual_seed(1)
    stem = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    for parameter in stem.parameters():
        parameter.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), stem, nn.Linear(4, 4), nn.BatchNorm1d(4))


def model(extractor: nn.Module) -> Model:
    return Model(Split(extractor, nn.Linear(4, 3)), settings="m", example=Example.zeros((2, 3), 3))


def test_a_frozen_backbone_has_no_place_in_the_vector_with_its_statistics_and_counters() -> None:
    made = model(backbone())
    assert [entry.name.removeprefix("extractor.") for entry in made.entries("extractor")] == [
        *("2.weight", "2.bias", "3.weight", "3.bias", "3.running_mean", "3.running_var")
    ]
    assert {*made.frozen} == {
        *(f"extractor.1.0.{name}" for name in ("weight", "bias")),
        *(f"extractor.1.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    }
    assert [*made.counters] == ["extractor.3.num_batches_tracked"]


def test_its_normalisation_rests_while_it_is_in_training_and_nothing_of_it_moves() -> None:
    made = model(backbone())
    before = made.frozen_sha256
    made.learn("model")
    at = dict(made.module.named_modules())
    assert not at["extractor.1.1"].training
    assert at["extractor.1.2"].training, "dropout is drawn as in any model in training mode"
    assert at["extractor.3"].training
    backward(made(torch.rand(5, 2, 3)).sum())
    made.rebind()
    del made.frozen_sha256
    assert made.frozen_sha256 == before
    assert made.counters["extractor.3.num_batches_tracked"] == 1
    assert bool(made.gradient.any())


def test_a_frozen_normalisation_may_see_one_sample_at_a_time() -> None:
    extractor = backbone()
    extractor[3].requires_grad_(False)
    frozen = model(extractor)
    assert not has_batch_norm(frozen, "model")
    assert has_batch_norm(model(backbone()), "extractor")
    frozen.learn("model")
    frozen(torch.rand(1, 2, 3))


def test_a_normalisation_without_parameters_goes_with_the_frozen_layers_around_it() -> None:
    stem = nn.Sequential(nn.Linear(6, 4).requires_grad_(False), nn.BatchNorm1d(4, affine=False))
    made = model(nn.Sequential(nn.Flatten(), stem, nn.Linear(4, 4)))
    assert "extractor.1.1.running_mean" in made.frozen
    free = model(nn.Sequential(nn.Flatten(), nn.Linear(6, 4).requires_grad_(False), nn.BatchNorm1d(4, affine=False)))
    assert "extractor.2.running_mean" in free.frozen, "the extractor around it is frozen as a whole"
    mixed = model(nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4, affine=False)))
    assert not mixed.frozen


def test_patterns_freeze_a_model_of_the_zoo() -> None:
    free, made = (
        build("cnn-small", IMAGES, 1),
        build(ModelSettings(name="cnn-small", freeze=("extractor.0.*",)), IMAGES, 1),
    )
    assert [*made.frozen] == ["extractor.0.weight", "extractor.0.bias"]
    assert len(made.vector) == len(free.vector) - 16 * 9 - 16
    assert made.sha256() == free.sha256(), "the same weights, wherever they lie"
    assert made.facts == (f"frozen weights sha256:{made.frozen_sha256}",)
    assert free.facts == ()
    with pytest.raises(
        InputError, match=r"no tensor whose name matches `features\.\*` of `freeze`; it has extractor.0"
    ):
        build(ModelSettings(name="cnn-small", freeze=("features.*",)), IMAGES, 1)


def test_peers_that_begin_differently_have_the_same_frozen_weights() -> None:
    settings = ModelSettings(name="cnn-small", freeze=("extractor.0.*",))
    a, b = (build(settings, IMAGES, 1, stream=peer) for peer in ("peer0", "peer1"))
    assert a.facts == b.facts
    assert not torch.equal(a.vector, b.vector)


def test_the_file_has_everything_and_gives_the_model_back(tmp_path: Path) -> None:
    made = build(ModelSettings(name="cnn-small", freeze=("extractor.0.*",)), IMAGES, 1, stream="peer0")
    save_model(made, tmp_path / "m")
    assert load_file(tmp_path / "m").keys() == build("cnn-small", IMAGES, 1).state().keys()
    loaded = load_model(tmp_path / "m")
    assert loaded.sha256() == made.sha256()
    assert loaded.frozen_sha256 == made.frozen_sha256


def test_the_digest_tells_names_shapes_dtypes_and_values() -> None:
    def digest(*, bias: bool = True, wide: bool = False, dtype: torch.dtype = torch.float32, value: float = 0.0) -> str:
        layer = nn.Linear(4, 6 if wide else 4, bias=bias).requires_grad_(False)
        nn.init.constant_(layer.weight, value)
        if bias:
            nn.init.zeros_(layer.bias)

        class Stem(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer.to(dtype)

            def forward(self, x: Tensor) -> Tensor:
                return x.flatten(1)

        return Model(Split(Stem(), nn.Linear(6, 3)), settings="m", example=Example.zeros((2, 3), 3)).frozen_sha256

    cases = [{}, {"bias": False}, {"wide": True}, {"dtype": torch.float16}, {"dtype": torch.bfloat16}, {"value": -0.0}]
    found = [digest(**case) for case in cases]  # type: ignore[arg-type]
    assert len({*found}) == len(cases)
    assert digest() == found[0]


def test_a_module_that_changes_what_it_froze_is_refused() -> None:
    class Teacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.student = nn.Linear(6, 4).requires_grad_(False), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                with torch.no_grad():
                    self.teacher.weight.lerp_(self.student.weight, 0.1)
            return self.student(x.flatten(1)) + self.teacher(x.flatten(1))

    made = model(Teacher())
    made.learn("model")
    made(torch.rand(2, 2, 3))
    with pytest.raises(
        InputError, match=r"extractor\.teacher\.weight asks for no gradient, and training has changed it"
    ):
        made.rebind()


def test_one_parameter_within_a_part_is_one_tensor() -> None:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    made = Model(
        Split(nn.Sequential(nn.Flatten(), first, second), nn.Linear(6, 3)),
        settings="m",
        example=Example.zeros((2, 3), 3),
    )
    assert [entry.name for entry in made.entries("extractor")] == [
        "extractor.1.weight",
        "extractor.1.bias",
        "extractor.2.bias",
    ]
    made.learn("model")
    backward(made(torch.rand(5, 2, 3)).sum())
    made.vector.zero_()
    assert not bool(second.weight.any())
    assert second.weight.grad is first.weight.grad
