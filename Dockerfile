# The course in a container, for CPUs, without root:
#
#     docker build -t rank-by-rank .
#     docker run --rm -p 127.0.0.1:8888:8888 -v my-course:/course/workspace rank-by-rank
#
# Open the address with 127.0.0.1 that it prints. Your copies of the lessons are in the volume
# my-course. Docker's 64 MB of shared memory are enough for one lesson, which takes about 20 MB; for
# several at a time add --shm-size=256m.
FROM python:3.12-slim-bookworm
RUN useradd --create-home --uid 1000 learner && install -d -o learner /course
USER 1000
WORKDIR /course
COPY --chown=1000 . .
# A volume that is mounted on an empty folder gets its owner.
RUN mkdir -p workspace && PIP_NO_CACHE_DIR=1 sh tools/install.sh
EXPOSE 8888
CMD [".venv/bin/python", "tools/lab.py", "--no-browser", "--ip=0.0.0.0", "--port=8888"]
