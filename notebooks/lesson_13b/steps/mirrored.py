"""TensorFlow's tf.distribute: one process, two virtual devices, mirrored variables."""

import tensorflow as tf
from toy import BATCH, RATE, STEPS, numbers, report

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
given = numbers()
data = tf.data.Dataset.from_tensors((given["inputs"], given["labels"])).unbatch().batch(BATCH)
data = strategy.experimental_distribute_dataset(data.repeat())
with strategy.scope():
    first, second = tf.Variable(given["first"].T), tf.Variable(given["second"].T)
    optimizer = tf.keras.optimizers.SGD(RATE, momentum=0.9)
    optimizer.build([first, second])


def step(inputs, labels):
    with tf.GradientTape() as tape:
        logits = tf.tanh(inputs @ first) @ second
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.nn.compute_average_loss(each, global_batch_size=BATCH)
    gradients = tape.gradient(loss, [first, second])
    optimizer.apply_gradients(zip(gradients, [first, second], strict=True))
    return loss


losses, feed = [], iter(data)
for _ in range(STEPS):
    of_replicas = strategy.run(step, next(feed))
    losses.append(strategy.reduce("sum", of_replicas, axis=None))
report(losses)
