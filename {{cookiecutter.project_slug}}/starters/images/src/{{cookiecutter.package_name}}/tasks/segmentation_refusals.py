"""What it cannot be given."""

from .suits import refusals as refusals
