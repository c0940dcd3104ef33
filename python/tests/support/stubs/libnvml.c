/* A stand-in for libnvidia-ml.so.1 (NVML) that answers as the environment says.
 *
 * STUB_NVML_INIT (nvmlReturn_t of nvmlInit), STUB_NVML_DRIVER ("550.54.15"), STUB_DRIVER_VERSION,
 * STUB_COUNT, STUB_NVML_HANDLE and STUB_NVML_DEVICE (what handles and queries of a GPU return; of
 * handles a value for each GPU),
 * STUB_MIG (-1: the GPU cannot be split; else whether it is), STUB_MIG_DEVICES, STUB_LINK_WIDTH,
 * STUB_THROTTLE, STUB_PID (a process that computes on every GPU) and, with a value for each GPU
 * between commas, STUB_NAME, STUB_TOTAL_MIB, STUB_FREE_MIB, STUB_COMPUTE_MODE, and as numbers of
 * which -1 is not supported STUB_UTILIZATION (percent), STUB_POWER_MW, STUB_POWER_LIMIT_MW,
 * STUB_ENERGY_MJ (by which the counter grows with each query),
 * STUB_TEMPERATURE, STUB_CLOCK_MHZ and STUB_PCIE_KIB (a second, received; half of it is sent).
 * It does not heed CUDA_VISIBLE_DEVICES, as NVML does not.
 * With -DOLD_DRIVER it lacks what drivers before 515 lack.
 */
#include "settings.h"

#include <stdint.h>
#include <threads.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, MOST = 16, MOST_MIG = 7 };

typedef struct { uint64_t total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; uint64_t bytes; unsigned gpu_instance, compute_instance; } Process;

static char devices[MOST]; /* handles are addresses in it */
static int started = 0;

static int index_of(void *device) { return (int)((char *)device - devices); }
static int query(void) { return started ? setting("STUB_NVML_DEVICE", SUCCESS) : UNINITIALIZED; }

int nvmlInit_v2(void)
{
    int status = setting("STUB_NVML_INIT", SUCCESS);
    started = status == SUCCESS;
    return status;
}
int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) { started = 0; return SUCCESS; }

const char *nvmlErrorString(int status)
{
    switch (status) {
    case 0: return "Success";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 12: return "NVML Shared Library Not Found";
    case 15: return "GPU is lost";
    case 17: return "The operating system has blocked the request";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    choose_text("STUB_NVML_DRIVER", "550.54.15", 0, version, length);
    return started ? SUCCESS : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = setting("STUB_DRIVER_VERSION", 12040);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = setting("STUB_COUNT", 1);
    return started ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = devices + index;
    int known = index < MOST && (int)index < setting("STUB_COUNT", 1);
    char status[32];
    choose_text("STUB_NVML_HANDLE", "0", (int)index, status, sizeof status);
    return known ? (int)strtol(status, NULL, 0) : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device)
{
    unsigned domain = 0, bus = 1;
    sscanf(id, "%x:%x", &domain, &bus);
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}

int nvmlDeviceGetName(void *device, char *name, unsigned length)
{
    choose_text("STUB_NAME", "Simulated GPU", index_of(device), name, length);
    return query();
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length)
{
    unsigned char uuid[16];
    size_t end = (size_t)snprintf(text, length, "GPU");
    make_uuid(index_of(device), uuid);
    for (int i = 0; i < 16; i++) {
        int dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        end += snprintf(text + end, length - end, dash ? "-%02x" : "%02x", uuid[i]);
    }
    return query();
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory)
{
    memory->total = choose_bytes("STUB_TOTAL_MIB", "16384", index_of(device));
    memory->free = choose_bytes("STUB_FREE_MIB", "16000", index_of(device));
    memory->used = memory->total - memory->free;
    return query();
}

int nvmlDeviceGetComputeMode(void *device, int *mode)
{
    char text[16];
    choose_text("STUB_COMPUTE_MODE", "0", index_of(device), text, sizeof text);
    *mode = atoi(text);
    return query();
}

static int answer_number(void *device, const char *name, const char *fallback, unsigned *out)
{
    char text[16];
    choose_text(name, fallback, index_of(device), text, sizeof text);
    *out = (unsigned)atoi(text);
    return query() ? query() : atoi(text) < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *used)
{
    int status = answer_number(device, "STUB_UTILIZATION", "0", &used->gpu);
    used->memory = used->gpu;
    return status;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    return answer_number(device, "STUB_POWER_MW", "70000", milliwatts);
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts)
{
    return answer_number(device, "STUB_POWER_LIMIT_MW", "300000", milliwatts);
}

/* Grows by as many millijoules with each query. */
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules)
{
    static unsigned long long queries = 0;
    unsigned step;
    int status = answer_number(device, "STUB_ENERGY_MJ", "-1", &step);
    *millijoules = ++queries * (unsigned long long)step;
    return status;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees)
{
    return sensor ? NOT_SUPPORTED : answer_number(device, "STUB_TEMPERATURE", "45", degrees);
}

int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *megahertz)
{
    return clock != 1 ? NOT_SUPPORTED : answer_number(device, "STUB_CLOCK_MHZ", "1380", megahertz);
}

/* It takes its time, as the real one does. */
int nvmlDeviceGetPcieThroughput(void *device, int counter, unsigned *kibibytes)
{
    int status = answer_number(device, "STUB_PCIE_KIB", "2048", kibibytes);
    thrd_sleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    *kibibytes /= counter == 1 ? 1 : 2;
    return status;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = devices;
    return strncmp(uuid, "MIG-", 4) ? NOT_FOUND : query();
}

static int answer(unsigned *out, unsigned value) { *out = value; return query(); }

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width)
{
    return answer(width, (unsigned)setting("STUB_LINK_WIDTH", 16));
}
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *width) { return answer(width, 16); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *out) { return answer(out, 3); }
int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *out) { return answer(out, 4); }

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, uint64_t *reasons)
{
    *reasons = (uint64_t)setting("STUB_THROTTLE", 0);
    return query();
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, Process *processes)
{
    unsigned pid = (unsigned)setting("STUB_PID", 0), room = *count;
    *count = pid != 0;
    if (pid && room < 1)
        return INSUFFICIENT_SIZE;
    if (pid)
        processes[0] = (Process){pid, (uint64_t)1 << 30, 0xFFFFFFFF, 0xFFFFFFFF};
    return query();
}

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(void *device, uint64_t *reasons)
{
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes)
{
    return nvmlDeviceGetComputeRunningProcesses_v2(device, count, processes);
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    int mode = setting("STUB_MIG", -1);
    *current = *pending = (unsigned)mode;
    return query() ? query() : mode < 0 ? NOT_SUPPORTED : SUCCESS;
}

/* TensorFlow asks for these two. */
int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active) { return NOT_SUPPORTED; }

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out) { return answer(out, MOST_MIG); }

/* Slots need not be filled from the first: here the last ones are. */
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice)
{
    *slice = device;
    int filled = index < MOST_MIG && (int)index >= MOST_MIG - setting("STUB_MIG_DEVICES", 0);
    return query() ? query() : filled ? SUCCESS : NOT_FOUND;
}
#endif
