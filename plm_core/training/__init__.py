"""Training: the loop and its steps, optimizer, learning rate, snapshots, several processes, the device."""
