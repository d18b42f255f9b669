"""Train many arms of one recipe: what varies, checked at once, run side by side, continued after a kill.

recipe, axes ─► combinations ─► check_arms ─► sweep directory ─► run_arms ─► `arl train` processes ─► run directories
"""
