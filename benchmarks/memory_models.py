"""Small models of kinds that the zoo has none of, for the survey of memory (``memory.py``).

Graph networks that gather and scatter, adversarial networks, autoencoders, recurrent and
convolutional ones over time, mixtures and contrastive pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

NODES, EDGES = 2000, 16_000
Losses = Callable[[Any], Tensor]


class GraphNetwork(nn.Module):
    """Rounds of messages along edges, added up at their targets by one of torch's scatters."""

    def __init__(self, how: str, width: int = 64, rounds: int = 3) -> None:
        super().__init__()
        self.how = how
        self.first = nn.Linear(32, width)
        self.rounds = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.last = nn.Linear(width, 8)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return a score of each class for every node. [NODES, 8]"""
        source, target = edges
        states = self.first(x)
        for layer in self.rounds:
            messages = layer(states)[source]
            rows, empty = target[:, None].expand_as(messages), torch.zeros_like(states)
            if self.how == "scatter_add":
                received = empty.scatter_add(0, rows, messages)
            elif self.how == "scatter_mean":
                received = empty.scatter_reduce(0, rows, messages, "mean")
            else:
                received = empty.index_add(0, target, messages)
            states = torch.relu(states + received)
        return self.last(states)


def _graph() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(NODES, 32), torch.randint(0, NODES, (2, EDGES))


def scatter_add() -> Any:
    """A graph network that sums messages by ``scatter_add``, with an expanded index."""
    return GraphNetwork("scatter_add"), _graph()


def scatter_mean() -> Any:
    """A graph network that takes means of messages by ``scatter_reduce``."""
    return GraphNetwork("scatter_mean"), _graph()


def index_add() -> Any:
    """A graph network that sums messages by ``index_add``."""
    return GraphNetwork("index_add"), _graph()


class TwoConvolutions(nn.Module):
    """Two layers of PyTorch Geometric, as its examples have them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import torch_geometric.nn

        layer = getattr(torch_geometric.nn, kind)
        self.first, self.second = layer(32, 64), layer(64, 8)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return a score of each class for every node. [NODES, 8]"""
        states: Tensor = self.second(torch.relu(self.first(x, edges)), edges)
        return states


def sage() -> Any:
    """GraphSAGE of PyTorch Geometric."""
    return TwoConvolutions("SAGEConv"), _graph()


def graph_conv() -> Any:
    """GraphConv of PyTorch Geometric."""
    return TwoConvolutions("GraphConv"), _graph()


class Adversarial(nn.Module):
    """A generator and a discriminator that scores real and generated examples in one step."""

    def __init__(self, generator: nn.Module, discriminator: nn.Module) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores of real, detached generated and generated examples."""
        generated = self.generator(noise)
        return (
            self.discriminator(real),
            self.discriminator(generated.detach()),
            self.discriminator(generated),
        )


def adversarial_loss(scores: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the sum of the losses of both networks."""
    real, detached, generated = scores
    loss = nn.functional.binary_cross_entropy_with_logits
    one, zero = torch.ones_like(real), torch.zeros_like(real)
    return loss(real, one) + loss(detached, zero) + loss(generated, one)


def gan() -> Any:
    """Two multilayer perceptrons over images of 784 pixels."""

    def perceptron(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(inputs, 256),
            nn.LeakyReLU(0.2),
            nn.Linear(256, 512),
            nn.LeakyReLU(0.2),
            nn.Linear(512, outputs),
        )

    torch.manual_seed(0)
    model = Adversarial(perceptron(64, 784), perceptron(784, 1))
    return model, (torch.randn(128, 784), torch.randn(128, 64)), adversarial_loss


def dcgan() -> Any:
    """DCGAN's generator and discriminator, for images of 32 x 32 pixels."""
    up, norm = nn.ConvTranspose2d, nn.BatchNorm2d
    generator = nn.Sequential(
        *(up(32, 128, 4, 1, 0, bias=False), norm(128), nn.ReLU()),
        *(up(128, 64, 4, 2, 1, bias=False), norm(64), nn.ReLU()),
        *(up(64, 32, 4, 2, 1, bias=False), norm(32), nn.ReLU()),
        *(up(32, 3, 4, 2, 1, bias=False), nn.Tanh()),
    )
    discriminator = nn.Sequential(
        *(nn.Conv2d(3, 32, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(32, 64, 4, 2, 1, bias=False), norm(64), nn.LeakyReLU(0.2)),
        nn.Conv2d(64, 1, 8, 1, 0, bias=False),
    )
    torch.manual_seed(0)
    inputs = torch.randn(16, 3, 32, 32), torch.randn(16, 32, 1, 1)
    return Adversarial(generator, discriminator), inputs, adversarial_loss


class Autoencoder(nn.Module):
    """A variational autoencoder; noise is an input, so that a step can be repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 40))
        self.decoder = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """Return the loss of each example: reconstruction and divergence. [batch]"""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        decoded = self.decoder(mean + noise * (0.5 * log_variance).exp())
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        loss: Tensor = (decoded - x).square().sum(1) + divergence.sum(1)
        return loss


def autoencoder() -> Any:
    """A variational autoencoder of images of 784 pixels."""
    torch.manual_seed(0)
    return Autoencoder(), (torch.randn(128, 784), torch.randn(128, 20)), torch.mean


def temporal() -> Any:
    """Dilated convolutions over time."""
    layers = [
        nn.Sequential(nn.Conv1d(32, 32, 3, dilation=d, padding=d), nn.ReLU())
        for d in (1, 2, 4, 8)
    ]
    return nn.Sequential(*layers, nn.Conv1d(32, 8, 1)), (torch.randn(16, 32, 256),)


def volumes() -> Any:
    """Convolutions in three dimensions."""
    model = nn.Sequential(
        *(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2)),
        *(
            nn.Conv3d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
        ),
        nn.Linear(16, 4),
    )
    return model, (torch.randn(4, 1, 24, 24, 24),)


def depthwise() -> Any:
    """Convolutions of each channel by itself, and of all channels of a pixel, as MobileNet has."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
            nn.BatchNorm2d(inputs),
            nn.ReLU6(),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU6(),
        )

    model = nn.Sequential(
        *(
            nn.Conv2d(3, 32, 3, 2, 1),
            block(32, 64, 1),
            block(64, 128, 2),
            block(128, 128, 1),
        ),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    )
    return model, (torch.randn(8, 3, 64, 64),)


class Contrastive(nn.Module):
    """Two encoders whose outputs are compared with all of the batch, as CLIP trains."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 128))
        self.text = nn.EmbeddingBag(1000, 128)

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        """Return the similarity of each image with each text. [batch, batch]"""
        first = nn.functional.normalize(self.image(image), dim=1)
        second = nn.functional.normalize(self.text(words), dim=1)
        return 10 * first @ second.T


def contrastive() -> Any:
    """Pairs of images and texts."""
    torch.manual_seed(0)
    return Contrastive(), (torch.randn(256, 512), torch.randint(0, 1000, (256, 16)))


class Encoder(nn.Module):
    """torch's own transformer encoder over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 500)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of words. [batch, length, 500]"""
        scores: Tensor = self.head(self.encoder(self.embedding(tokens)))
        return scores


def encoder() -> Any:
    """torch's own transformer encoder."""
    torch.manual_seed(0)
    return Encoder(), (torch.randint(0, 500, (8, 64)),)


class Factorized(nn.Module):
    """A factorization machine over embedded fields."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = nn.ModuleList(nn.Embedding(2000, 16) for _ in range(8))
        self.deep = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids: Tensor) -> Tensor:
        """Return a score of each row. [batch, 1]"""
        vectors = torch.stack(
            [field(ids[:, k]) for k, field in enumerate(self.fields)], dim=1
        )
        pairs = vectors.sum(1).square() - vectors.square().sum(1)
        score: Tensor = 0.5 * pairs.sum(1, keepdim=True) + self.deep(vectors.flatten(1))
        return score


def factorized() -> Any:
    """DeepFM's two parts over eight fields."""
    torch.manual_seed(0)
    return Factorized(), (torch.randint(0, 2000, (512, 8)),)
