/* mpi_racer.c - a racer of an MPI library: built by mpicc of each that is installed. */
#include "../race.h"

#include <mpi.h>

static int reduce(void *context, const float *in, float *out, uint64_t count,
                  const struct race_command *command)
{
    (void)context;
    (void)command;
    MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return 0;
}

static void barrier(void *context)
{
    (void)context;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void *take_memory(uint64_t bytes)
{
    void *memory = NULL;
    return MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &memory) == MPI_SUCCESS ? memory : NULL;
}

static void give_memory(void *memory)
{
    MPI_Free_mem(memory);
}

int main(int argc, char **argv)
{
    int rank, world;
    const struct race_calls calls = {reduce, barrier, NULL, NULL, 0, take_memory, give_memory};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (argc != 3)
        race_die("usage: racer DIRECTORY NAME");
    race_serve(argv[1], argv[2], (uint32_t)rank, (uint32_t)world, &calls);
    MPI_Finalize();
    return 0;
}
