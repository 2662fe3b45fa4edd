"""State-action learned embeddings (SALE, https://arxiv.org/abs/2306.02451): the encoder that TD7 and PAR share."""

import torch as th
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn

from sb3_cir.networks import AvgRNorm


class DynamicsEncoder(nn.Module):
    """
    A representation of states, and of the next state as predicted from a state and an action.

    :param obs_dim: Size of the observation
    :param action_dim: Size of the action
    :param width: Size of hidden layers and of the representation
    """

    def __init__(self, obs_dim: int, action_dim: int, width: int):
        super().__init__()
        self.state = nn.Sequential(*create_mlp(obs_dim, width, [width, width], nn.ELU), AvgRNorm(1.0))
        self.state_action = nn.Sequential(*create_mlp(width + action_dim, width, [width, width], nn.ELU))

    def predict(self, state: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        :param state: Representation of the state, ``(batch, width)``
        :param actions: ``(batch, action_dim)``
        :return: The predicted representation of the next state, ``(batch, width)``
        """
        predicted: th.Tensor = self.state_action(th.cat([state, actions], dim=1))
        return predicted

    def error(self, batch: ReplayBufferSamples) -> th.Tensor:
        """
        :param batch: Transitions
        :return: Mean squared error of the predicted representation of the next state, which itself is taken as given;
            ``(batch, 1)``
        """
        assert isinstance(batch.observations, th.Tensor)
        with th.no_grad():
            actual = self.state(batch.next_observations.float())
        predicted = self.predict(self.state(batch.observations.float()), batch.actions)
        error: th.Tensor = (predicted - actual).square().mean(dim=1, keepdim=True)
        return error
