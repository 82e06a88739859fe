"""The worlds: one file each, with its constants, its bounds and where they come from."""

from dcrl.envs import tiny as tiny
from dcrl.envs.express import express as express
