"""Training: the loop and its steps, optimizer, learning rate, state and snapshots, several processes, the device."""
