/* mixtral_names.c - see mixtral_names.h. */
#include "mixtral_names.h"
#include <stdio.h>
#include <string.h>

static const char experts[] = ".block_sparse_moe.experts.";
enum { EXPERTS_MAX = 65536 };

/* What is behind "experts.", or NULL. */
static const char *behind(const char *name)
{
    const char *at = strstr(name, experts);
    return at != NULL ? at + sizeof experts - 1 : NULL;
}

static bool is_part(const char *part)
{
    return strcmp(part, "w1.weight") == 0 || strcmp(part, "w2.weight") == 0 || strcmp(part, "w3.weight") == 0;
}

/* The number at the beginning, and what is behind it and a dot; NULL: there is none, or one with zeros in
 * front. */
static const char *take_number(const char *at, uint32_t *out)
{
    const size_t digits = strspn(at, "0123456789");
    *out = 0;
    if (digits == 0 || digits > 5 || at[digits] != '.' || (digits > 1 && at[0] == '0'))
        return NULL;
    for (size_t i = 0; i < digits; i++)
        *out = 10 * *out + (uint32_t)(at[i] - '0');
    return *out < EXPERTS_MAX ? at + digits + 1 : NULL;
}

bool keel_mixtral_is_expert(const char *name, uint32_t *out_expert)
{
    const char *at = behind(name);
    at = at != NULL ? take_number(at, out_expert) : NULL;
    return at != NULL && is_part(at);
}

bool keel_mixtral_is_stack(const char *name, uint32_t dims)
{
    const char *at = behind(name);
    return at != NULL && dims == 3 && is_part(at);
}

bool keel_mixtral_expert_name(const char *name, uint32_t expert, char *out, size_t bytes)
{
    const char *at = behind(name), *part = at;
    uint32_t number;
    if (keel_mixtral_is_expert(name, &number))
        part = take_number(at, &number);
    const int length = snprintf(out, bytes, "%.*s%u.%s", (int)(at - name), name, expert, part);
    return length >= 0 && (size_t)length < bytes;
}

void keel_mixtral_stack_name(const char *name, char out[KEEL_TENSOR_NAME_BYTES])
{
    uint32_t number;
    const char *at = behind(name);
    snprintf(out, KEEL_TENSOR_NAME_BYTES, "%.*s%s", (int)(at - name), name, take_number(at, &number));
}
