"""What train and sweep share: a task, its steps and data, and the programs that train it on devices or in lanes."""
