"""Broadcasts and reads values one after another; the test breaks things meanwhile. Knows nothing of Polycast.

For each name on the command line: prints `NEXT name`, waits for a file `go-name` in its folder, broadcasts a value, reads it in
four tasks, and prints `DONE name seconds`. A task that reads wrong bytes fails the job.
"""

import hashlib
import os
import random
import sys
import time

from pyspark.sql import SparkSession

BYTES = int(os.environ.get("FAULTS_BYTES", "30000000"))


def main():
    spark = SparkSession.builder.appName("faults").getOrCreate()
    sc = spark.sparkContext
    for number, name in enumerate(sys.argv[1:]):
        print(f"NEXT {name}", flush=True)
        while not os.path.exists(f"go-{name}"):
            time.sleep(0.05)
        bytes_ = random.Random(number).randbytes(BYTES)
        begun = time.monotonic()
        value = sc.broadcast(bytes_)
        read = sc.parallelize(range(4), 4).map(lambda part: (time.sleep(0.2), hashlib.sha256(value.value).hexdigest())[1])
        assert read.collect() == [hashlib.sha256(bytes_).hexdigest()] * 4
        print(f"DONE {name} {time.monotonic() - begun:.1f}", flush=True)
        value.destroy()
    spark.stop()


if __name__ == "__main__":
    main()
