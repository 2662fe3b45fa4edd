"""What makes long runs survive, for any off-policy algorithm of Stable-Baselines3."""
