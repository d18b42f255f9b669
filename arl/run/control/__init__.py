"""Let commands that see a run's directory ask its controller to add, join and remove engines."""
