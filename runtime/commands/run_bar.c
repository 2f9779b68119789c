/* run_bar.c - see run_bar.h. */
#include "run_bar.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { CELLS = 24 };

static int columns(void)
{
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col : 80;
}

void keel_bar_draw(const struct keel_bar *bar)
{
    const uint64_t done = bar->step < bar->steps ? bar->step * CELLS / bar->steps : CELLS;
    const double rate = bar->seconds > 0 ? (double)bar->samples / bar->seconds : 0;
    const double step = bar->steps_now > 0 ? bar->seconds / (double)bar->steps_now : 0;
    char cells[CELLS + 1], line[256];
    for (uint64_t i = 0; i < CELLS; i++)
        cells[i] = i < done ? '#' : '.';
    cells[CELLS] = '\0';
    snprintf(line, sizeof line,
             "[%s] %" PRIu64 "/%" PRIu64 "  loss %.4f  %.0f %s/s  snapshot %" PRIu64 "  view %" PRIu64
             " (%u ranks)  %.0f s left",
             cells, bar->step, bar->steps, (double)bar->loss, rate, bar->unit, bar->snapshot, bar->epoch,
             bar->ranks, step * (double)(bar->steps - bar->step));
    printf("\r\033[K%.*s", columns() - 1, line); /* a bar that wraps cannot be drawn over */
    fflush(stdout);
}
