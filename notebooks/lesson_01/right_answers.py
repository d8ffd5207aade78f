"""Right answers to lesson 01 in other styles than the solution: from a style to a function."""

RIGHT_ANSWERS = {
    "01.ring_pass": {
        "by an irecv posted first": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    coming = comm.irecv(source=left)
    if comm.rank == 0:
        token.append(0)
        comm.send(token, dest=right)
        return coming.wait()
    token = coming.wait() + [comm.rank]
    comm.isend(token, dest=right).wait()
    return token
""",
        "turn by turn, with tags": """
def ring_pass(comm, token):
    if comm.rank == 0:
        token = [*token, 0]
    for turn in range(comm.size):
        following = (turn + 1) % comm.size
        if comm.rank == turn:
            comm.ssend(token, dest=following, tag=turn)
        if comm.rank == following:
            token = comm.recv(source=MPI.ANY_SOURCE, tag=turn)
            if comm.rank != 0:
                token.append(comm.rank)
    return token
""",
        "by sendrecv on rank 0": """
def ring_pass(comm, token):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        return comm.sendrecv([*token, 0], dest=right, source=left)
    token = [*comm.recv(source=left), comm.rank]
    comm.send(token, dest=right)
    return token
""",
    },
    "01.shift": {
        "by waitall": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.zeros(array.shape, array.dtype)
    requests = [comm.Irecv(received, source=left), comm.Isend(array, dest=right)]
    MPI.Request.Waitall(requests)
    return received
""",
        "by Sendrecv_replace": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    copy = array.copy()
    comm.Sendrecv_replace(copy, dest=right, source=left)
    return copy
""",
        "even ranks first": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(array)
    if comm.rank % 2:
        comm.Recv(received, source=left)
        comm.Send(array, dest=right)
    else:
        comm.Send(array, dest=right)
        comm.Recv(received, source=left)
    return received
""",
        "by persistent requests": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(array)
    requests = [comm.Send_init(array, dest=right), comm.Recv_init(received, source=left)]
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    return received
""",
        "by a probe": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    request, status = comm.Isend(array, dest=right), MPI.Status()
    comm.Probe(source=left, status=status)
    received = np.empty(status.Get_count(MPI.BYTE) // array.itemsize, array.dtype)
    comm.Recv(received, source=left)
    request.Wait()
    return received.reshape(array.shape)
""",
        "as bytes": """
def shift(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = bytearray(array.nbytes)
    comm.Sendrecv(array.tobytes(), dest=right, recvbuf=received, source=left)
    return np.frombuffer(received, dtype=array.dtype)
""",
    },
    "01.handshake": {
        "by a probe": """
def handshake(comm, payload):
    if comm.rank > 0:
        comm.ssend("hello", dest=0)
        comm.recv(source=0)
        comm.ssend(payload, dest=0)
        return
    status, payloads = MPI.Status(), {}
    while len(payloads) < comm.size - 1:
        comm.probe(source=MPI.ANY_SOURCE, status=status)
        worker = status.Get_source()
        hello = comm.recv(source=worker)
        comm.send("I am ready for you", dest=worker)
        payloads[worker] = comm.recv(source=worker)
    return payloads
""",
        "by tags and isend": """
def handshake(comm, payload):
    HELLO, READY, PAYLOAD = 1, 2, 3
    if comm.rank == 0:
        def serve():
            status = MPI.Status()
            comm.irecv(source=MPI.ANY_SOURCE, tag=HELLO).wait(status)
            worker = status.source
            comm.isend("I am ready for you", worker, READY).wait()
            return worker, comm.recv(source=worker, tag=PAYLOAD)
        return dict(serve() for _ in range(1, comm.size))
    requests = [comm.isend("hello", 0, HELLO)]
    answer = comm.recv(source=0, tag=READY)
    requests.append(comm.isend(payload, 0, PAYLOAD))
    MPI.Request.waitall(requests)
""",
        "by polling": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None

    payloads, status = {}, MPI.Status()
    while len(payloads) != comm.size - 1:
        if comm.iprobe(source=MPI.ANY_SOURCE, status=status):
            who = status.Get_source()
            comm.recv(source=who)
            comm.send("I am ready for you", dest=who)
            payloads[who] = comm.recv(source=who)
    return payloads
""",
        "by matched probes": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.send("hello", dest=0)
        comm.recv(source=0)
        comm.send(payload, dest=0)
        return None

    payloads = {}
    while len(payloads) < comm.size - 1:
        status = MPI.Status()
        message = comm.improbe(status=status)
        if message is None:
            continue
        message.recv()
        comm.send("I am ready for you", status.source)
        payloads[status.source] = comm.recv(source=status.source)
    return payloads
""",
        "by sendrecv": """
def handshake(comm, payload):
    if comm.rank != 0:
        comm.sendrecv("hello", dest=0, source=0)
        return comm.send(payload, dest=0)
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(status=status)
        worker = status.source
        payloads[worker] = comm.sendrecv("I am ready for you", dest=worker, source=worker)
    return payloads
""",
    },
    "01.write_in_order": {
        "by PROC_NULL": """
def write_in_order(comm, text, write):
    before = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    after = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    comm.recv(source=before)
    write(text)
    comm.send(None, dest=after)
""",
        "by empty arrays": """
def write_in_order(comm, text, write):
    nothing = np.empty(0)
    if comm.rank:
        comm.Recv(nothing, source=MPI.ANY_SOURCE)
    write(text)
    if comm.rank != comm.size - 1:
        comm.Isend(nothing, dest=comm.rank + 1).Wait()
""",
        "by PROC_NULL, not blocking": """
def write_in_order(comm, text, write):
    left = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    right = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
    comm.irecv(source=left).wait()
    write(text)
    comm.isend(0, dest=right).wait()
""",
        "turn by turn": """
def write_in_order(comm, text, write):
    for turn in range(comm.size):
        if comm.rank == turn:
            write(text)
            if turn + 1 < comm.size:
                comm.send(turn, dest=turn + 1)
        elif comm.rank == turn + 1:
            comm.recv(source=turn)
""",
    },
}
