/* command.h - running `keel ckpt` inside a test, with its outputs caught. */
#ifndef KEEL_TESTS_CKPT_COMMAND_H
#define KEEL_TESTS_CKPT_COMMAND_H

#include "sample.h"
#include <jansson.h>
#include <keel/ckpt_cmd.h>

struct output {
    int code;
    char text[16384], errors[4096];
};

static inline void slurp(FILE *file, char *out, size_t capacity)
{
    rewind(file);
    size_t got = fread(out, 1, capacity - 1, file);
    out[got] = '\0';
    fclose(file);
}

/* Run the command in this process with both outputs redirected. */
static inline struct output run_command(int count, char **words)
{
    struct output result;
    char *argv[32] = {"ckpt"};
    for (int i = 0; i < count; i++)
        argv[i + 1] = words[i];
    fflush(NULL);
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    FILE *text = tmpfile(), *errors = tmpfile();
    ck_assert(text != NULL && errors != NULL);
    dup2(fileno(text), STDOUT_FILENO);
    dup2(fileno(errors), STDERR_FILENO);
    result.code = keel_ckpt_main(count + 1, argv);
    fflush(NULL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    slurp(text, result.text, sizeof result.text);
    slurp(errors, result.errors, sizeof result.errors);
    return result;
}
#define COMMAND(...)                                                                                         \
    run_command((int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__})

static inline json_t *parse(const struct output *output)
{
    json_error_t error;
    json_t *root = json_loads(output->text, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(root != NULL, "no JSON: %s: %s", error.text, output->text);
    return root;
}

#endif
