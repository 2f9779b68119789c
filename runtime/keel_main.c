/* keel_main.c - the one binary: picks the subcommand, each of which lives in its room. */
#include <keel/status.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    (void)argv;
    printf("keel %s\n", KEEL_RELEASE);
    return argc > 1 ? keel_status_exit_code(KEEL_INVALID) : 0;
}
