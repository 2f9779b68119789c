/* compile_count.h - calls of OpenCL's compiler in this program: programs from source, and from binaries.
 *
 * Included once in a test program, it stands in front of the ICD loader's two functions. */
#ifndef KEEL_TESTS_COMPILE_COUNT_H
#define KEEL_TESTS_COMPILE_COUNT_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

static uint32_t from_source, from_binary;

static void *next_of(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **strings,
                                     const size_t *lengths, cl_int *errcode_ret)
{
    cl_program (*next)(cl_context, cl_uint, const char **, const size_t *, cl_int *);
    void *found = next_of("clCreateProgramWithSource");
    memcpy(&next, &found, sizeof next);
    from_source++;
    return next(context, count, strings, lengths, errcode_ret);
}

cl_program clCreateProgramWithBinary(cl_context context, cl_uint num_devices, const cl_device_id *device_list,
                                     const size_t *lengths, const unsigned char **binaries,
                                     cl_int *binary_status, cl_int *errcode_ret)
{
    cl_program (*next)(cl_context, cl_uint, const cl_device_id *, const size_t *, const unsigned char **,
                       cl_int *, cl_int *);
    void *found = next_of("clCreateProgramWithBinary");
    memcpy(&next, &found, sizeof next);
    from_binary++;
    return next(context, num_devices, device_list, lengths, binaries, binary_status, errcode_ret);
}

#endif
