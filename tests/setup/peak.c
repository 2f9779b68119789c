/* peak.c - peak OUT COMMAND...: runs a command with its output in a file and prints the most memory, in KB,
 * that it or one of those that it waited for had at a time. A small program, since a child begins with what
 * its parent has. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct rusage used;
    int ended = 0;
    pid_t child = argc > 2 ? fork() : -1;
    if (child == 0) {
        int out = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    if (child < 0 || wait4(child, &ended, 0, &used) != child)
        return 2;
    printf("%ld\n", used.ru_maxrss);
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : 1;
}
