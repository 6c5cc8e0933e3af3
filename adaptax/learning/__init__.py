"""From rollouts to what networks learn from: sequences, advantages, minibatches, replay."""
