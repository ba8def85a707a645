/* Whether the memory that a run reserved lies on the card. Windows, under which WSL runs too, gives a program host memory in its place
 * where the card's is short or a display wants it, without an error: each access then crosses the link, twenty times as slow. So a few
 * places are filled, with what no op takes for a number, and timed: milliseconds on a sound card. */
#include "core/arena.h"
#include "core/clock.h"
#include "core/log.h"
#include "cuda/device_internal.h"

#include <math.h>
#include <unistd.h>

enum { PLACES = 8, PLACE_BYTES = 32 << 20 };

#define FIRST_S    0.05 /* in which places are tried first */
#define CONFIRM_S  0.5  /* until a slow place is believed: a card that was idle takes a while to raise its clocks */
#define LINK_MOST  70e9 /* bytes/s: no link to host memory fills faster (PCIe 5 x16: 63 GB/s) */
#define SLOW_SHARE 0.25 /* of what the card's memory promises: no memory on a card is so slow */

struct probe {
	cudaEvent_t event[2];         /* before and after a fill */
	double promised, slow, least; /* bytes/s: the memory's by its clock and width; below which a place is slow; the slowest place's */
	int tried, slow_places;       /* the latter a set of bits */
};

/* 0 where it is not known. */
static double promised_rate(int gpu)
{
	int khz = 0, bits = 0;
	cudaError_t error = cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, gpu);
	if (error == cudaSuccess)
		error = cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, gpu);
	if (error == cudaSuccess)
		return 2e3 * khz * bits / 8; /* two bits a clock and wire */
	(void)cudaGetLastError();
	return 0;
}

static int try_place(struct cuda_device *device, struct probe *probe, int place)
{
	int64_t at = (device->reserved_bytes - PLACE_BYTES) / (PLACES - 1) * place / RH_ALIGN * RH_ALIGN;
	cudaStream_t stream = device->stream[RH_STREAM_COMPUTE];
	float milliseconds = 0;
	cudaError_t error = cudaEventRecord(probe->event[0], stream);
	if (error == cudaSuccess)
		error = cudaMemsetAsync(device->memory + at, 0xff, PLACE_BYTES, stream);
	if (error == cudaSuccess)
		error = cudaEventRecord(probe->event[1], stream);
	if (error == cudaSuccess)
		error = cudaEventSynchronize(probe->event[1]);
	if (error == cudaSuccess)
		error = cudaEventElapsedTime(&milliseconds, probe->event[0], probe->event[1]);
	double rate = milliseconds > 0 ? PLACE_BYTES * 1e3 / (double)milliseconds : INFINITY;
	probe->slow_places &= ~(1 << place);
	if (rate < probe->slow)
		probe->slow_places |= 1 << place;
	probe->least = fmin(probe->least, rate);
	return cuda_check(device, error, "probing the memory that was reserved");
}

/* All places, then the slow ones until none is left or they are believed. */
static int try_places(struct cuda_device *device, struct probe *probe)
{
	double begun = rh_clock_seconds();
	int rc = 0;
	for (; !rc && probe->tried < PLACES && (!probe->tried || rh_clock_seconds() - begun < FIRST_S); probe->tried++)
		rc = try_place(device, probe, probe->tried);
	while (!rc && probe->slow_places && rh_clock_seconds() - begun < CONFIRM_S) {
		probe->least = INFINITY;
		for (int place = 0; !rc && place < probe->tried; place++)
			if (probe->slow_places >> place & 1)
				rc = try_place(device, probe, place);
	}
	return rc;
}

static void tell(const struct cuda_device *device, const struct probe *probe)
{
	int slow = __builtin_popcount((unsigned)probe->slow_places), has_time_limit = 0;
	if (slow) {
		rh_warn_once("device " CUDA_KIND
		             ":%d: of %d places in the memory reserved for the run %d take %.1f GB/s, the card's memory "
		             "%.0f: they seem to lie in host memory, and steps will be slow; end what else uses the GPU, or lower max_vram "
		             "(on Windows, set CUDA - Sysmem Fallback Policy to Prefer No Sysmem Fallback, too)",
		             device->gpu, probe->tried, slow, probe->least / 1e9, probe->promised / 1e9);
		return;
	}
	if (cudaDeviceGetAttribute(&has_time_limit, cudaDevAttrKernelExecTimeout, device->gpu) != cudaSuccess)
		(void)cudaGetLastError();
	if (has_time_limit || !access("/dev/dxg", F_OK)) /* a display's, or reached through Windows */
		rh_note("device " CUDA_KIND ":%d: the memory reserved for the run lies on the card: it takes %.0f GB/s of %.0f",
		        device->gpu, probe->least / 1e9, probe->promised / 1e9);
}

int cuda_probe_memory(struct cuda_device *device)
{
	struct probe probe = {.promised = promised_rate(device->gpu), .least = INFINITY};
	probe.slow = fmin(SLOW_SHARE * probe.promised, LINK_MOST);
	if (probe.promised <= 0 || device->reserved_bytes < (int64_t)PLACES * PLACE_BYTES)
		return 0;
	int rc = 0;
	for (int i = 0; !rc && i < 2; i++)
		rc = cuda_check(device, cudaEventCreateWithFlags(&probe.event[i], cudaEventBlockingSync), "creating an event");
	if (!rc)
		rc = try_places(device, &probe);
	for (int i = 0; i < 2; i++)
		if (probe.event[i])
			(void)cudaEventDestroy(probe.event[i]);
	if (!rc)
		tell(device, &probe);
	return rc;
}
