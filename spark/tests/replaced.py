"""Broadcasts two values, and reads the second one after the test has put the first one's bytes in its place. Knows nothing of Polycast.

Prints `PUBLISHED`, waits for a file `go` in its folder, reads the value in four tasks, and prints `RESULT {..}`.
"""

import hashlib
import json
import os
import random
import time

from pyspark.sql import SparkSession

BYTES = 8_000_000


def main():
    spark = SparkSession.builder.appName("replaced").getOrCreate()
    sc = spark.sparkContext
    contents = [random.Random(seed).randbytes(BYTES) for seed in (1, 2)]
    _, value = [sc.broadcast(content) for content in contents]
    print("PUBLISHED", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
    read = sc.parallelize(range(4), 4).map(lambda part: (time.sleep(0.2), hashlib.sha256(value.value).hexdigest())[1])
    print("RESULT " + json.dumps({"read": read.collect(), "wrote": hashlib.sha256(contents[1]).hexdigest()}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
