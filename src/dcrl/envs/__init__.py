"""The worlds: one file each, with its constants, its bounds and where they come from."""

from dcrl.envs import tiny as tiny
from dcrl.envs.express import express as express
from dcrl.envs.motor import Motor as Motor
from dcrl.envs.native import Env as Env
from dcrl.envs.native import Outcome as Outcome
from dcrl.envs.rover import Rover as Rover
