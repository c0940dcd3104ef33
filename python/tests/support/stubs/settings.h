/* What the stand-ins for the NVIDIA driver's libraries share: settings from the environment. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The probe reports every library that exports this symbol as simulated. */
int gpukeras_simulated_driver = 1;

static int setting(const char *name, int fallback)
{
    const char *value = getenv(name);
    return value && *value ? (int)strtol(value, NULL, 0) : fallback;
}

/* The index-th of the texts that a comma separates, or the last. */
static void choose_text(const char *name, const char *fallback, int index, char *out, size_t size)
{
    const char *text = getenv(name);
    if (!text || !*text)
        text = fallback;
    for (; index > 0 && strchr(text, ','); index--)
        text = strchr(text, ',') + 1;
    snprintf(out, size, "%.*s", (int)strcspn(text, ","), text);
}

static size_t choose_bytes(const char *name, const char *fallback, int index)
{
    char text[32];
    choose_text(name, fallback, index, text, sizeof text);
    return (size_t)strtoull(text, NULL, 0) << 20;
}

static void make_uuid(int index, unsigned char uuid[16])
{
    for (int i = 0; i < 16; i++)
        uuid[i] = (unsigned char)(0x10 * i + index);
}
