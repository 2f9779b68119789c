/* gloo_racer.cc - a racer of Gloo, over TCP on loopback, which is what it has between processes. */
#include "../race.h"

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <string>

static int reduce(void *context, const float *in, float *out, uint64_t count, const struct race_command *)
{
    auto &meeting = *static_cast<std::shared_ptr<gloo::rendezvous::Context> *>(context);
    gloo::AllreduceOptions options(meeting);
    options.setInput(const_cast<float *>(in), count);
    options.setOutput(out, count);
    options.setReduceFunction(
        [](void *c, const void *a, const void *b, size_t n) { gloo::sum<float>(c, a, b, n); });
    gloo::allreduce(options);
    return 0;
}

static void barrier(void *context)
{
    auto &meeting = *static_cast<std::shared_ptr<gloo::rendezvous::Context> *>(context);
    gloo::BarrierOptions options(meeting);
    gloo::barrier(options);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        race_die("usage: racer DIRECTORY NAME RANK WORLD");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const uint32_t rank = (uint32_t)atoi(argv[3]), world = (uint32_t)atoi(argv[4]);
    gloo::transport::tcp::attr attributes("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto meeting = std::make_shared<gloo::rendezvous::Context>((int)rank, (int)world);
    gloo::rendezvous::FileStore store(std::string(argv[1]) + "/gloo");
    meeting->connectFullMesh(store, device);
    const struct race_calls calls = {reduce, barrier, nullptr, &meeting, 0};
    race_serve(argv[1], argv[2], rank, world, &calls);
    return 0;
}
