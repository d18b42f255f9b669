"""Send signals to processes of real runs, at drawn moments, and audit what the runs come to."""
