"""What ``ninferd bench`` measures: every figure as a share of what this machine was seen to reach in the same run."""
