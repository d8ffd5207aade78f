"""The usual wrong answers to lesson 01: from a mistake's name to a function that makes it."""

WRONG_ANSWERS = {
    "01.ring_pass": {
        "ring-not-closed": """
def ring_pass(comm, token):
    if comm.rank > 0:
        token = comm.recv(source=comm.rank - 1)
    token = [*token, comm.rank]
    if comm.rank < comm.size - 1:
        comm.send(token, dest=comm.rank + 1)
    return token
""",
        "falls-off-the-end": """
def ring_pass(comm, token):
    if comm.rank > 0:
        token = comm.recv(source=comm.rank - 1)
    token = [*token, comm.rank]
    comm.send(token, dest=comm.rank + 1)
    return comm.recv(source=comm.size - 1) if comm.rank == 0 else token
""",
        "everyone-receives-first": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    token = [*comm.recv(source=left), comm.rank]
    comm.send(token, dest=right)
    return token
""",
        "wrong-direction": """
def ring_pass(comm, token):
    right, left = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=right)
        return comm.recv(source=left)
    token = [*comm.recv(source=left), comm.rank]
    comm.send(token, dest=right)
    return token
""",
        "not-a-ring": """
def ring_pass(comm, token):
    if comm.rank > 0:
        return comm.recv(source=0)
    for dest in range(1, comm.size):
        comm.send([*token, *range(dest + 1)], dest=dest)
    return [*token, *range(comm.size)]
""",
        "does-not-sign": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=right)
        return comm.recv(source=left)
    token = comm.recv(source=left)
    comm.send(token, dest=right)
    return token
""",
        "keeps-the-old-token": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank > 0:
        token = comm.recv(source=left)
    token = [*token, comm.rank]
    comm.send(token, dest=right)
    if comm.rank == 0:
        comm.recv(source=left)
    return token
""",
        "rank-0-signs-twice": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=right)
    token = [*comm.recv(source=left), comm.rank]
    if comm.rank > 0:
        comm.send(token, dest=right)
    return token
""",
        "never-received": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank > 0:
        token = comm.recv(source=left)
    token = [*token, comm.rank]
    comm.send(token, dest=right)
    return token
""",
        "returns-nothing": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=right)
        return comm.recv(source=left)
    comm.send([*comm.recv(source=left), comm.rank], dest=right)
""",
        "uses-a-collective": """
def ring_pass(comm, token):
    token = comm.bcast(token, root=0)
    return [*token, *range(comm.rank + 1 if comm.rank else comm.size)]
""",
        "size-is-fixed": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % 4, (comm.rank - 1) % 4
    if comm.rank == 0:
        comm.send([*token, 0], dest=right)
        return comm.recv(source=left)
    token = [*comm.recv(source=left), comm.rank]
    comm.send(token, dest=right)
    return token
""",
        "no-communication": """
def ring_pass(comm, token):
    return ["start", *range(comm.rank + 1)] if comm.rank else ["start", *range(comm.size)]
""",
        "everyone-receives-first: in a loop": """
def ring_pass(comm, token):
    for source in range(comm.size):
        token = comm.recv(source=source)
    token.append(comm.rank)
    comm.send(token, dest=(comm.rank + 1) % comm.size)
    return token
""",
        "falls-off-the-end: to receive": """
def ring_pass(comm, token):
    if comm.rank == 0:
        comm.send(token + [0], dest=1)
        return comm.recv(source=comm.size)
    token = comm.recv(source=comm.rank - 1) + [comm.rank]
    comm.send(token, dest=comm.rank + 1)
    return token
""",
        "size-is-fixed: by the rank in the world": """
def ring_pass(comm, token):
    if rank == 0:
        comm.send(token + [0], dest=1)
        return comm.recv(source=world_size - 1)
    token = comm.recv(source=rank - 1) + [rank]
    comm.send(token, dest=(rank + 1) % world_size)
    return token
""",
        "sends-before-it-receives": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    token = token or []
    token.append(comm.rank)
    comm.send(token, dest=right)
    return comm.recv(source=left)
""",
        "ring-not-closed: and waited for": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=1)
    token = comm.recv(source=left)
    if comm.rank > 0:
        token.append(comm.rank)
    if comm.rank < comm.size - 1:
        comm.send(token, dest=right)
    return token
""",
        "tags-differ": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=right, tag=1)
        return comm.recv(source=left, tag=comm.size)
    token = [*comm.recv(source=left, tag=comm.rank), comm.rank]
    comm.send(token, dest=right, tag=comm.rank)
    return token
""",
        "does-not-wait": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.isend([*token, 0], dest=right)
        return comm.recv(source=left)
    token = [*comm.recv(source=left), comm.rank]
    comm.isend(token, dest=right)
    return token
""",
        "returns-nothing: on rank 0": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=right)
        comm.recv(source=left)
    else:
        token = [*comm.recv(source=left), comm.rank]
        comm.send(token, dest=right)
        return token
""",
        "no-communication: on comm": """
def ring_pass(comm, token):
    comm = MPI.COMM_WORLD
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=right)
        return comm.recv(source=left)
    token = [*comm.recv(source=left), comm.rank]
    comm.send(token, dest=right)
    return token
""",
        "does-not-sign: what it passes on": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=right)
        return comm.recv(source=left)
    token = comm.recv(source=left)
    comm.send(token, dest=right)
    return [*token, comm.rank]
""",
        "sends-too-much": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for lap in range(2):
        if comm.rank == 0:
            comm.send([*token, 0], dest=right)
            token = comm.recv(source=left)
        else:
            token = [*comm.recv(source=left), comm.rank]
            comm.send(token, dest=right)
    return token
""",
    },
    "01.shift": {
        "everyone-sends-first": """
def shift(comm, array):
    received = np.empty_like(array)
    comm.Send(array, dest=(comm.rank + 1) % comm.size)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    return received
""",
        "everyone-receives-first": """
def shift(comm, array):
    received = np.empty_like(array)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    comm.Send(array, dest=(comm.rank + 1) % comm.size)
    return received
""",
        "wrong-direction": """
def shift(comm, array):
    received = np.empty_like(array)
    request = comm.Isend(array, dest=(comm.rank - 1) % comm.size)
    comm.Recv(received, source=(comm.rank + 1) % comm.size)
    request.wait()
    return received
""",
        "overwrites-its-own": """
def shift(comm, array):
    request = comm.Irecv(array, source=(comm.rank - 1) % comm.size)
    copy = array.copy()
    comm.Send(copy, dest=(comm.rank + 1) % comm.size)
    request.wait()
    return array
""",
        "does-not-wait": """
def shift(comm, array):
    received = np.empty_like(array)
    comm.Isend(array, dest=(comm.rank + 1) % comm.size)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    return received
""",
        "returns-its-own": """
def shift(comm, array):
    received = np.empty_like(array)
    request = comm.Isend(array, dest=(comm.rank + 1) % comm.size)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    request.wait()
    return array
""",
        "pickles": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return comm.sendrecv(array, dest=right, source=left)
""",
        "uses-a-collective": """
def shift(comm, array):
    return comm.allgather(array)[comm.rank - 1]
""",
        "falls-off-the-end": """
def shift(comm, array):
    received = np.empty_like(array)
    request = comm.Isend(array, dest=comm.rank + 1)
    comm.Recv(received, source=comm.rank - 1)
    request.wait()
    return received
""",
        "forgets-the-dtype": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty(len(array))
    comm.Sendrecv(array, dest=right, recvbuf=received, source=left)
    return received
""",
        "does-not-wait: for what it receives": """
def shift(comm, array):
    received = np.empty_like(array)
    comm.Irecv(received, source=(comm.rank - 1) % comm.size)
    comm.Isend(array, dest=(comm.rank + 1) % comm.size).wait()
    return received.copy()
""",
        "overwrites-its-own: under another name": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = array
    comm.Sendrecv(array, dest=right, recvbuf=received, source=left)
    return received
""",
        "it-raises": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return comm.Sendrecv(array, dest=right, source=left)
""",
        "everyone-sends-first: and waits at once": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(array)
    comm.Isend(array, dest=right).wait()
    comm.Irecv(received, source=left).wait()
    return received
""",
        "size-is-fixed": """
def shift(comm, array):
    received = np.empty_like(array)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    comm.Sendrecv(array, dest=right, recvbuf=received, source=left)
    return received
""",
        "wrong-value": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(array)
    comm.Sendrecv(array, dest=right, recvbuf=received, source=left)
    return array + received
""",
        "returns-nothing": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(array)
    comm.Sendrecv(array, dest=right, recvbuf=received, source=left)
""",
        "does-not-wait: for its send": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(array)
    requests = [comm.Isend(array, dest=right), comm.Irecv(received, source=left)]
    requests[1].wait()
    return received
""",
        "returns-its-own: all the way round": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = array.copy()
    for _ in range(comm.size):
        comm.Sendrecv_replace(received, dest=right, source=left)
    return received
""",
        "pickles: by isend": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    request = comm.isend(array, dest=right)
    received = comm.recv(source=left)
    request.wait()
    return received
""",
    },
    "01.handshake": {
        "nobody-speaks-first": """
def handshake(comm, payload):
    if comm.rank != 0:
        assert comm.recv(source=0) == "I am ready for you"
        comm.send("hello", dest=0)
        comm.send(payload, dest=0)
        return None
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        comm.send("I am ready for you", dest=status.source)
        payloads[status.source] = comm.recv(source=status.source)
    return payloads
""",
        "does-not-wait-for-ready": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.send(payload, dest=0)
        comm.recv(source=0)
        return None
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        worker = status.source
        comm.send("I am ready for you", dest=worker)
        payloads[worker] = comm.recv(source=worker)
    return payloads
""",
        "fixed-order": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    payloads = {}
    for worker in range(1, comm.size):
        comm.recv(source=worker)
        comm.send("I am ready for you", dest=worker)
        payloads[worker] = comm.recv(source=worker)
    return payloads
""",
        "payload-from-anyone": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        worker = status.source
        comm.send("I am ready for you", dest=worker)
        payloads[worker] = comm.recv(source=MPI.ANY_SOURCE)
    return payloads
""",
        "not-one-at-a-time": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    workers, status = [], MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        workers.append(status.source)
    for worker in workers:
        comm.send("I am ready for you", dest=worker)
    return {worker: comm.recv(source=worker) for worker in workers}
""",
        "no-answer": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        worker = status.source
        payloads[worker] = comm.recv(source=worker)
    return payloads
""",
        "stops-too-early": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    status = MPI.Status()
    comm.recv(source=MPI.ANY_SOURCE, status=status)
    worker = status.source
    comm.send("I am ready for you", dest=worker)
    return {worker: comm.recv(source=worker)}
""",
        "wrong-words": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        worker = status.source
        comm.send("ready", dest=worker)
        payloads[worker] = comm.recv(source=worker)
    return payloads
""",
        "wrong-value": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    payloads, status = [], MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        worker = status.source
        comm.send("I am ready for you", dest=worker)
        payloads.append(comm.recv(source=worker))
    return payloads
""",
        "uses-a-collective": """
def handshake(comm, payload):
    payloads = comm.gather(payload, root=0)
    return None if comm.rank else dict(enumerate(payloads[1:], start=1))
""",
        "serves-too-many": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        comm.send("I am ready for you", dest=status.source)
        payloads[status.source] = comm.recv(source=status.source)
    return payloads
""",
        "rank-0-is-no-worker": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    status = MPI.Status()
    payloads = {0: payload}
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        comm.send("I am ready for you", dest=status.source)
        payloads[status.source] = comm.recv(source=status.source)
    return payloads
""",
        "tags-differ": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0, tag=1)
        comm.recv(source=0, tag=2)
        comm.send(payload, dest=0, tag=3)
        return None
    status, payloads = MPI.Status(), {}
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        comm.send("I am ready for you", dest=status.source)
        payloads[status.source] = comm.recv(source=status.source)
    return payloads
""",
        "workers-return-something": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return payload
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        comm.send("I am ready for you", dest=status.source)
        payloads[status.source] = comm.recv(source=status.source)
    return payloads
""",
        "keeps-the-hello": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None

    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        payloads[status.source] = comm.recv(source=MPI.ANY_SOURCE, status=status)
        comm.send("I am ready for you", dest=status.source)
        comm.recv(source=status.source)
    return payloads
""",
        "size-is-fixed": """
def handshake(comm, payload):
    if rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    payloads, status = {}, MPI.Status()
    for _ in range(world_size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        comm.send("I am ready for you", dest=status.source)
        payloads[status.source] = comm.recv(source=status.source)
    return payloads
""",
        "wrong-words: no hello": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    payloads = {}
    for worker in range(1, comm.size):
        comm.send("I am ready for you", dest=worker)
        payloads[worker] = comm.recv(source=worker)
    return payloads
""",
        "wrong-words: a hello with a name": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send(("hello", comm.rank), dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None
    payloads = {}
    for _ in range(comm.size - 1):
        hello, worker = comm.recv(source=MPI.ANY_SOURCE)
        comm.send("I am ready for you", dest=worker)
        payloads[worker] = comm.recv(source=worker)
    return payloads
""",
        "does-not-wait": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None

    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(status=status)
        comm.isend("I am ready for you", status.source)
        payloads[status.source] = comm.recv(source=status.source)
    return payloads
""",
        "does-not-wait-for-ready: nor hears it": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.send(payload, dest=0)
        return None
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        comm.send("I am ready for you", dest=status.source)
        payloads[status.source] = comm.recv(source=status.source)
    return payloads
""",
    },
    "01.write_in_order": {
        "uses-a-barrier": """
def write_in_order(comm, text, write):
    for turn in range(comm.size):
        if turn == comm.rank:
            write(text)
        comm.Barrier()
""",
        "nobody-waits": """
def write_in_order(comm, text, write):
    import time

    time.sleep(0.1 * comm.rank)
    write(text)
""",
        "nobody-begins": """
def write_in_order(comm, text, write):
    comm.recv(source=(comm.rank - 1) % comm.size)
    write(text)
    comm.send("your turn", dest=(comm.rank + 1) % comm.size)
""",
        "first-waits": """
def write_in_order(comm, text, write):
    if comm.rank == 0:
        for source in range(1, comm.size):
            comm.recv(source=source)
        write(text)
    else:
        comm.send("I am here", dest=0)
        comm.recv(source=comm.rank - 1)
        write(text)
    if comm.rank < comm.size - 1:
        comm.recv(source=comm.rank + 1)
""",
        "writes-for-others": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        comm.send(text, dest=0)
        return
    write(text)
    for source in range(1, comm.size):
        write(comm.recv(source=source))
""",
        "passes-on-before-writing": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    if comm.rank < comm.size - 1:
        comm.send("your turn", dest=comm.rank + 1)
    write(text)
""",
        "writes-before-its-turn": """
def write_in_order(comm, text, write):
    write(text)
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    if comm.rank < comm.size - 1:
        comm.send("your turn", dest=comm.rank + 1)
""",
        "falls-off-the-end": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    write(text)
    comm.send("your turn", dest=comm.rank + 1)
""",
        "sends-too-much": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    write(text)
    comm.send("your turn", dest=(comm.rank + 1) % comm.size)
    if comm.rank == 0:
        comm.recv(source=comm.size - 1)
""",
        "uses-a-collective": """
def write_in_order(comm, text, write):
    for turn in range(comm.size):
        if turn == comm.rank:
            write(text)
        comm.bcast("next", root=turn)
""",
        "wrong-direction": """
def write_in_order(comm, text, write):
    if comm.rank < comm.size - 1:
        comm.recv(source=comm.rank + 1)
    write(text)
    if comm.rank > 0:
        comm.send("your turn", dest=comm.rank - 1)
""",
        "order-not-forced": """
def write_in_order(comm, text, write):
    if comm.rank == 0:
        write(text)
        for dest in range(1, comm.size):
            comm.send("your turn", dest=dest)
    else:
        comm.recv(source=0)
        write(text)
""",
        "writes-nothing": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    if comm.rank < comm.size - 1:
        comm.send("your turn", dest=comm.rank + 1)
    return text
""",
        "writes-nothing: but prints": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    print(text)
    if comm.rank < comm.size - 1:
        comm.send("your turn", dest=comm.rank + 1)
""",
        "writes-twice": """
def write_in_order(comm, text, write):
    write(text)
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
        write(text)
    if comm.rank < comm.size - 1:
        comm.send("your turn", dest=comm.rank + 1)
""",
        "it-raises: on the last rank": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    write(text)
    if comm.rank < comm.size - 1:
        comm.send("your turn", dest=comm.rank + 1)
    else:
        prnt("done")
""",
        "it-hangs: nobody passes on": """
def write_in_order(comm, text, write):
    if comm.rank == 0:
        write(text)
        comm.send("your turn", dest=1)
    else:
        comm.recv(source=comm.rank - 1)
        write(text)
""",
        "size-is-fixed": """
def write_in_order(comm, text, write):
    if rank > 0:
        comm.recv(source=rank - 1)
    write(text)
    if rank < world_size - 1:
        comm.send("your turn", dest=rank + 1)
""",
        "does-not-wait": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    write(text)
    if comm.rank < comm.size - 1:
        comm.isend("your turn", dest=comm.rank + 1)
""",
        "passes-on-before-writing: by isend": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    request = comm.isend("your turn", dest=comm.rank + 1) if comm.rank < comm.size - 1 else None
    write(text)
    if request:
        request.wait()
""",
        "uses-a-collective: gather": """
def write_in_order(comm, text, write):
    texts = comm.gather(text)
    if comm.rank == 0:
        for line in texts:
            write(line)
""",
        "wrong-value": """
def write_in_order(comm, text, write):
    if comm.rank > 0:
        text = comm.recv(source=comm.rank - 1) + text
    write(text)
    if comm.rank < comm.size - 1:
        comm.send(text, dest=comm.rank + 1)
""",
    },
}
