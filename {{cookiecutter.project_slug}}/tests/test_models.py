"""Every network and every initialization."""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from onecurve.command.resolvers import register_resolvers
from onecurve.errors import UserError
from torch import nn
from torchvision import models

from {{ cookiecutter.package_name }}.models.lenet import PartialConv2d, ScaledTanh, lenet

CONFIGS = Path(__file__).parent.parent / "configs"
MODELS = sorted(path.stem for path in (CONFIGS / "model").glob("*.yaml"))
# Those that draw weights; test_checkpoint_files.py takes them from a file.
INITS = sorted({path.stem for path in (CONFIGS / "init").glob("*.yaml")} - {"weights"})


def build(*overrides: str) -> nn.Sequential:
    register_resolvers()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", overrides=list(overrides))
    torch.manual_seed(0)
    try:
        network: nn.Sequential = instantiate(config.model)
    except InstantiationException as error:
        # Hydra wraps what a function raises, and the engine unwraps it too.
        raise (error.__cause__ or error) from None
    instantiate(config.init)(network)
    return network


@pytest.mark.parametrize("data", ["digits", "cifar10", "synthetic"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_maps_images_to_logits(model: str, data: str) -> None:
    network = build(f"model={model}", f"data={data}")
    channels = 3 if data == "cifar10" else 1
    inputs = torch.randn(4, channels, 32, 32)
    outputs = network(inputs)
    assert outputs.shape == (4, 10)
    nn.functional.cross_entropy(outputs, torch.arange(4)).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    # Layer after layer, tensors in and tensors out: what a pipeline is cut from.
    network.eval()
    value = inputs
    for layer in network:
        value = layer(value)
    assert torch.equal(value, network(inputs))


def used_parameters(layer: nn.Module) -> int:
    if isinstance(layer, PartialConv2d):
        taps = layer.kernel_size[0] * layer.kernel_size[1]
        return int(layer.mask.sum()) * taps + layer.out_channels
    return sum(parameter.numel() for parameter in layer.parameters())


def test_lenet_has_the_parameters_of_the_paper() -> None:
    network = lenet(in_channels=1, image_size=32, num_classes=10)
    counts = {name: used_parameters(layer) for name, layer in network.named_children()}
    counts = {name: count for name, count in counts.items() if count}
    output = counts.pop("output")
    assert counts == {"c1": 156, "s2": 12, "c3": 1516, "s4": 32, "c5": 48120, "f6": 10164}
    assert sum(counts.values()) == 60_000
    assert output == 850


def test_lenet_has_the_shapes_of_figure_2() -> None:
    network = lenet(in_channels=1, image_size=32, num_classes=10)
    value = torch.randn(2, 1, 32, 32)
    shapes = {}
    for name, layer in network.named_children():
        value = layer(value)
        shapes[name] = tuple(value.shape[1:])
    assert shapes["c1"] == (6, 28, 28)
    assert shapes["s2"] == (6, 14, 14)
    assert shapes["c3"] == (16, 10, 10)
    assert shapes["s4"] == (16, 5, 5)
    assert shapes["c5"] == (120, 1, 1)
    assert shapes["f6"] == (84,)


def test_weights_between_maps_that_are_not_connected_do_nothing() -> None:
    layer = PartialConv2d(((0, 2), (1,)), kernel_size=3)
    inputs = torch.randn(1, 3, 5, 5)
    before = layer(inputs)
    before.square().sum().backward()
    loose = layer.mask.expand_as(layer.weight) == 0
    assert loose.sum() == 3 * 9
    assert layer.weight.grad is not None
    assert layer.weight.grad[loose].abs().sum() == 0
    assert (layer.weight.grad[~loose] != 0).all()
    with torch.no_grad():
        layer.weight[loose] = 100.0
    assert torch.equal(layer(inputs), before)


def test_lenet_sums_2x2_blocks_and_squashes() -> None:
    network = lenet(in_channels=1, image_size=32, num_classes=10)
    ones = torch.ones(1, 6, 4, 4)
    with torch.no_grad():
        network.s2.coefficient.fill_(2.0)
        network.s2.bias.fill_(0.5)
    assert torch.equal(network.s2(ones), torch.full((1, 6, 2, 2), 8.5))
    # The paper chose the constants so that f(1) = 1 and f(-1) = -1.
    ends = torch.tensor([1.0, -1.0])
    torch.testing.assert_close(ScaledTanh()(ends), ends, atol=1e-4, rtol=0)


def test_lenet_refuses_other_sizes() -> None:
    with pytest.raises(UserError, match=r"data\.image_size=28.*data\.image_size=32"):
        build("model=lenet", "data.image_size=28")


def test_mlp_takes_any_size_and_depth() -> None:
    network = build("model=mlp", "model.hidden=[16,8]", "data=synthetic", "data.image_size=9")
    assert [layer.out_features for layer in network if isinstance(layer, nn.Linear)] == [16, 8, 10]
    assert network(torch.zeros(2, 1, 9, 9)).shape == (2, 10)
    assert len(build("model=mlp", "model.hidden=[]")) == 2


@pytest.mark.compares
def test_resnet_computes_what_torchvision_computes() -> None:
    network = build("model=resnet", "data=cifar10").eval()
    original = models.resnet18(num_classes=10).eval()
    names = dict(zip(network.state_dict(), original.state_dict(), strict=True))
    original.load_state_dict({names[name]: value for name, value in network.state_dict().items()})
    inputs = torch.randn(2, 3, 64, 64)
    assert torch.equal(network(inputs), original(inputs))
    assert [name for name, _ in network.named_children()] == ["backbone", "head"]
    assert isinstance(network.backbone, nn.Sequential)


def test_small_image_stem_keeps_the_resolution() -> None:
    network = build("model=resnet", "model.small_images=true")
    stem = nn.Sequential(*[network.backbone.get_submodule(n) for n in ("conv1", "bn1", "maxpool")])
    assert stem(torch.zeros(2, 1, 32, 32)).shape == (2, 64, 32, 32)
    with pytest.raises(UserError, match=r"small_images.*mobilenet_v3_small"):
        build("model=resnet", "model.small_images=true", "model.name=mobilenet_v3_small")


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "shufflenet_v2_x0_5", "densenet121"])
def test_other_classifiers_of_torchvision(name: str) -> None:
    network = build("model=resnet", f"model.name={name}").eval()
    assert network(torch.zeros(1, 1, 64, 64)).shape == (1, 10)
    assert isinstance(network.head, nn.Linear)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name=resnet81", "resnet18"),
        ("model.name=squeezenet1_0", "linear"),
        ("model.weights=IMAGENET", "IMAGENET1K_V1"),
    ],
)
def test_what_torchvision_does_not_have_is_named(override: str, message: str) -> None:
    with pytest.raises(UserError, match=f"{override}.*{message}"):
        build("model=resnet", override)


@pytest.mark.compares
@pytest.mark.parametrize("channels", [1, 3])
def test_pretrained_weights(channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    original = models.shufflenet_v2_x0_5()
    url = models.ShuffleNet_V2_X0_5_Weights.DEFAULT.url
    file = tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    torch.save(original.state_dict(), file)
    choice = ("model.name=shufflenet_v2_x0_5", "model.weights=DEFAULT")
    network = build("model=resnet", *choice, f"data.channels={channels}")
    original.fc = nn.Identity()
    # Another number of channels is another sum, which rounds otherwise.
    original.double().eval()
    network.double().eval()
    grey = torch.randn(2, 1, 64, 64, dtype=torch.float64)
    outputs = network.backbone(grey.expand(-1, channels, -1, -1))
    torch.testing.assert_close(outputs, original(grey.expand(-1, 3, -1, -1)))


def test_weights_that_cannot_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"model\.weights=DEFAULT.*model\.weights=null") as caught:
        build("model=resnet", "model.name=shufflenet_v2_x0_5", "model.weights=DEFAULT")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("init", INITS)
def test_every_initialization(init: str) -> None:
    plain = build("model=mlp", "init=default")
    network = build("model=mlp", f"init={init}")
    weight = network.hidden2.weight.detach()
    if init == "default":
        assert torch.equal(weight, plain.hidden2.weight)
        assert network.hidden2.bias.abs().sum() > 0
        return
    assert network.hidden2.bias.abs().sum() == 0
    if init == "orthogonal":
        torch.testing.assert_close(weight @ weight.T, torch.eye(512), atol=1e-4, rtol=0)
    else:
        variance = {"xavier": 1 / 512, "kaiming": 2 / 512}[init]
        assert weight.var().item() == pytest.approx(variance, rel=0.02)


def test_initialization_leaves_lenets_subsampling_alone() -> None:
    network = build("model=lenet", "init=kaiming")
    assert (network.s2.coefficient == 0.25).all()
    assert network.c3.bias.abs().sum() == 0
