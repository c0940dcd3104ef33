/* A stand-in for libcuda.so.1 that answers as the environment says; nothing can be computed on it.
 *
 * STUB_CUINIT (CUresult of cuInit; -1: it ends the process, -2: it never returns),
 * STUB_DRIVER_VERSION (12040), STUB_COUNT, STUB_COUNT_STATUS and, with a value for each GPU between
 * commas, STUB_NAME, STUB_CAPABILITY ("9.0"), STUB_TOTAL_MIB, STUB_COMPUTE_MODE and
 * STUB_MULTIPROCESSORS.  STUB_ORDER ("1,0") is CUDA's own order of the GPUs, which
 * CUDA_VISIBLE_DEVICES counts in, heeded as CUDA does, by indices only.
 * With -DOLD_DRIVER it lacks what drivers before CUDA 9.2 lack.
 */
#include "settings.h"

#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101 };
enum { MOST = 16 };

static const struct { int code; const char *name, *text; } results[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
     "forward compatibility was attempted on non supported HW"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED",
     "MPS client failed to connect to the MPS control daemon"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
static int started = 0, shown = 0, physical[MOST];

/* The GPUs in the order of CUDA_VISIBLE_DEVICES; as CUDA, it stops at the first that is none. */
static void show_devices(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = setting("STUB_COUNT", 1);
    char place[32];
    for (shown = 0; !visible && shown < count && shown < MOST; shown++)
        physical[shown] = shown;
    while (visible && isdigit((unsigned char)*visible) && atoi(visible) < count && shown < MOST) {
        physical[shown++] = atoi(visible);
        visible += strcspn(visible, ",");
        visible += *visible == ',';
    }
    for (int i = 0; getenv("STUB_ORDER") && i < shown; i++) {
        choose_text("STUB_ORDER", "", physical[i], place, sizeof place);
        physical[i] = atoi(place);
    }
}

int cuInit(unsigned flags)
{
    int code = setting("STUB_CUINIT", SUCCESS);
    if (code == -1)
        abort();
    while (code == -2)
        sleep(1);
    if (code != SUCCESS || started)
        return code;
    show_devices();
    if (getenv("CUDA_VISIBLE_DEVICES") && !shown)
        return NO_DEVICE;
    started = 1;
    return SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    *version = setting("STUB_DRIVER_VERSION", 12040);
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    *count = shown;
    return started ? setting("STUB_COUNT_STATUS", SUCCESS) : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return !started ? NOT_INITIALIZED : ordinal < shown ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int length, int device)
{
    choose_text("STUB_NAME", "Simulated GPU", physical[device], name, length);
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = choose_bytes("STUB_TOTAL_MIB", "16384", physical[device]);
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    static const struct { int attribute, value; } usual[] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535},
        {8, 49152}, {10, 32}, {12, 65536}, {13, 1500000}, {36, 1200000}, {37, 256},
        {38, 4194304}, {39, 2048}, {81, 102400}, {82, 65536}, {97, 101376}, {106, 32},
    };
    int index = physical[device], major = 0, minor = 0;
    char text[32];
    choose_text("STUB_CAPABILITY", "9.0", index, text, sizeof text);
    sscanf(text, "%d.%d", &major, &minor);
    *value = attribute == 75 ? major : attribute == 76 ? minor : 0;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        *value = usual[i].attribute == attribute ? usual[i].value : *value;
    choose_text("STUB_MULTIPROCESSORS", "40", index, text, sizeof text);
    *value = attribute == 16 ? atoi(text) : *value;
    choose_text("STUB_COMPUTE_MODE", "0", index, text, sizeof text);
    *value = attribute == 20 ? atoi(text) : *value;
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *id, int length, int device)
{
    snprintf(id, length, "0000:%02x:00.0", physical[device] + 1);
    return SUCCESS;
}

#ifndef OLD_DRIVER
int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    make_uuid(physical[device], uuid);
    return SUCCESS;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
#endif

static int find_result(int code, const char **out, int as_text)
{
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].code == code) {
            *out = as_text ? results[i].text : results[i].name;
            return SUCCESS;
        }
    *out = NULL;
    return INVALID_VALUE;
}

int cuGetErrorName(int code, const char **name) { return find_result(code, name, 0); }
int cuGetErrorString(int code, const char **text) { return find_result(code, text, 1); }
