"""Run every part of a machine once, small and within minutes: `arl doctor --smoke`."""
