/* One file by MPI_Bcast, from rank 0 to all others; baselines.py compiles and runs it.
 *
 *   mpi FILE FOLDER BYTES   rank R has its copy in FOLDER/R.out; rank 0 prints the seconds from the moment when all are ready
 *                           until all have it
 *
 * Copies are mapped files, so that writing them is part of the time, as it is for the other ways. */

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static char *map(const char *path, int flags, int sharing, size_t bytes) {
    int file = open(path, flags, 0600);
    if (file < 0 || ((flags & O_CREAT) && ftruncate(file, (off_t)bytes))) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, sharing, file, 0);
    if (memory == MAP_FAILED) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    if (count != 4) {
        fprintf(stderr, "say FILE FOLDER BYTES\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size_t bytes = strtoul(arguments[3], NULL, 10);
    char *memory;
    if (rank == 0) {
        /* Some algorithms write into the root's memory too. It is read before the clock starts. */
        memory = map(arguments[1], O_RDONLY, MAP_PRIVATE | MAP_POPULATE, bytes);
    } else {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d.out", arguments[2], rank);
        memory = map(path, O_RDWR | O_CREAT | O_TRUNC, MAP_SHARED, bytes);
    }
    /* Connections are made before, as agents and receivers of the other ways are there before. */
    char word = 0;
    MPI_Bcast(&word, 1, MPI_CHAR, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    MPI_Bcast(memory, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double took = MPI_Wtime() - begun;
    if (rank == 0) {
        printf("%.6f\n", took);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
