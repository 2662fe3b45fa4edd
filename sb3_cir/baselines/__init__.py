"""The methods that the paper compares CIR with."""
