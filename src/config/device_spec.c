#include "config/device_spec.h"

#include "config/config_internal.h"

#include <stdlib.h>
#include <string.h>

/* The number at *at, of at most four digits, and *at behind it; -1: none is there. */
static int number(const char **at)
{
	int value = 0, digits = 0;
	for (; **at >= '0' && **at <= '9' && digits < 4; digits++)
		value = value * 10 + *(*at)++ - '0';
	return digits ? value : -1;
}

static int parse_count(const char *text, int *count)
{
	*count = number(&text);
	return !*text && *count >= 1 && *count <= RH_DEVICES_MAX;
}

static int parse_gpus(const char *text, struct rh_device_spec *out)
{
	for (;; text++) {
		int gpu = number(&text);
		if (gpu < 0 || out->count == RH_DEVICES_MAX)
			return 0;
		out->gpu[out->count++] = gpu;
		if (*text != ',')
			return !*text;
	}
}

static int parse(const char *text, struct rh_device_spec *out)
{
	const char *colon = strchr(text, ':');
	size_t length = colon ? (size_t)(colon - text) : strlen(text);
	if (length == 3 && !memcmp(text, "cpu", 3)) {
		out->kind = RH_DEVICE_CPU;
		out->count = 1;
		return !colon || parse_count(colon + 1, &out->count);
	}
	if (length == 4 && !memcmp(text, "cuda", 4)) {
		out->kind = RH_DEVICE_CUDA;
		return !colon || parse_gpus(colon + 1, out);
	}
	if (length == 3 && !memcmp(text, "sim", 3) && colon && colon[1]) {
		out->kind = RH_DEVICE_SIM;
		out->profile = colon + 1;
		return 1;
	}
	if (length == 3 && !memcmp(text, "emu", 3) && colon && parse_count(colon + 1, &out->count)) {
		out->kind = RH_DEVICE_EMU;
		for (int i = 0; i < out->count; i++)
			out->gpu[i] = i;
		return 1;
	}
	return 0;
}

int rh_device_spec_parse(const char *text, struct rh_device_spec *out)
{
	*out = (struct rh_device_spec){0};
	if (parse(text, out))
		return 0;
	return rh_fail(-EINVAL,
	               "'%s' is not allowed; expected cpu, cpu:N with N from 1 to %d, cuda, cuda with GPUs as in cuda:0,2, or "
	               "sim: and a hardware profile",
	               config_show(text).text, RH_DEVICES_MAX);
}
