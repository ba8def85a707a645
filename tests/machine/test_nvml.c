/* GPUs by their address on the bus, by a management library that is made up: what it does not say is not known. */
#include "check.h"

#include "machine/nvml.h"

#include <string.h>

static struct nvmlDevice_st {
	const char *address;
	int is_silent;
} cards[] = {{"0000:01:00.0", 0}, {"0000:02:00.0", 1}};

static int by_address(const char *address, nvmlDevice_t *out)
{
	for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
		if (!strcmp(cards[i].address, address)) {
			*out = &cards[i];
			return 0;
		}
	return 6; /* not found */
}

static int utilization(nvmlDevice_t device, struct rh_nvml_utilization *out)
{
	*out = (struct rh_nvml_utilization){87, 40};
	return device->is_silent;
}

static int temperature(nvmlDevice_t device, int sensor, unsigned *celsius)
{
	assert_int_equal(sensor, 0);
	*celsius = 64;
	return device->is_silent;
}

static int power(nvmlDevice_t device, unsigned *milliwatts)
{
	*milliwatts = 231500;
	return device->is_silent;
}

static int memory(nvmlDevice_t device, struct rh_nvml_memory *out)
{
	*out = (struct rh_nvml_memory){.total = 24, .free = 4, .used = 20};
	return device->is_silent;
}

static int name(nvmlDevice_t device, char *out, unsigned bytes)
{
	snprintf(out, bytes, "RTX");
	return device->is_silent;
}

static void test_a_card_is_found_by_its_address(void **state)
{
	(void)state;
	const struct rh_nvml nvml = {.calls = {.by_address = by_address,
	                                       .utilization = utilization,
	                                       .temperature = temperature,
	                                       .power = power,
	                                       .memory = memory,
	                                       .name = name}};
	struct rh_gpu_state gpu;
	assert_int_equal(rh_nvml_read(&nvml, "0000:01:00.0", &gpu), 1);
	assert_string_equal(gpu.name, "RTX");
	assert_int_equal(gpu.load_percent, 87);
	assert_int_equal(gpu.celsius, 64);
	assert_true(gpu.watts > 231.4 && gpu.watts < 231.6);
	assert_int_equal(gpu.used_bytes, 20);
	assert_int_equal(gpu.total_bytes, 24);
	assert_int_equal(rh_nvml_read(&nvml, "0000:02:00.0", &gpu), 1);
	assert_true(!*gpu.name && gpu.load_percent == -1 && gpu.celsius == -1 && gpu.watts < 0 && gpu.used_bytes == -1);
	assert_int_equal(rh_nvml_read(&nvml, "0000:03:00.0", &gpu), 0);
	assert_int_equal(rh_nvml_read(&nvml, "", &gpu), 0); /* a CPU device */
}

/* With a driver it opens, without one it does not; what was not opened may be closed and asked. */
static void test_without_a_driver_there_is_none(void **state)
{
	(void)state;
	struct rh_nvml nvml;
	struct rh_gpu_state gpu;
	int rc = rh_nvml_open(&nvml);
	assert_true(rc == 0 || rc == -ENOENT);
	rh_nvml_close(&nvml);
	assert_int_equal(rh_nvml_read(&nvml, "0000:01:00.0", &gpu), 0);
	rh_nvml_close(&nvml);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_card_is_found_by_its_address),
	        cmocka_unit_test(test_without_a_driver_there_is_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
