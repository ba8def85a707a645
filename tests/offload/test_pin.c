/* Registration by degrees, against a device that refuses as told. */
#include "check.h"

#include "core/log.h"
#include "offload/memory.h"
#include "offload/pin.h"

#include <string.h>
#include <sys/resource.h>

enum { MIB = 1 << 20, HELD = 64 };

/* Remembers what is registered; refuses what is longer than `longest`, or would be more than `most` in all. */
struct fake {
	struct rh_device base;
	int64_t longest, most, total;
	struct {
		char *at;
		int64_t bytes;
	} held[HELD];
	int count;
};

static int fake_pin(struct rh_device *device, void *host, int64_t bytes)
{
	struct fake *fake = (struct fake *)device;
	if (bytes > fake->longest || fake->total + bytes > fake->most)
		return rh_fail(-ENOMEM, "the fake refuses %lld bytes", (long long)bytes);
	assert_true(fake->count < HELD);
	fake->held[fake->count].at = host;
	fake->held[fake->count++].bytes = bytes;
	fake->total += bytes;
	return 0;
}

static void fake_unpin(struct rh_device *device, void *host, int64_t bytes)
{
	struct fake *fake = (struct fake *)device;
	for (int i = 0; i < fake->count; i++)
		if (fake->held[i].at == host && fake->held[i].bytes == bytes) {
			fake->total -= bytes;
			fake->held[i] = fake->held[--fake->count];
			return;
		}
	fail_msg("unpinned what was not pinned");
}

static const struct rh_device_ops pins = {.kind = "fake", .pin = fake_pin, .unpin = fake_unpin}, plain = {.kind = "fake"};

/* Copies of `bytes` from everywhere in it, cut as told, stay in one registration or outside all of them. */
static void check_runs(const struct fake *fake, const struct rh_host_pin *pin)
{
	for (int64_t at = 0; at < pin->bytes; at += 5 * MIB + 4096) {
		int64_t left = pin->bytes - at < 90 * MIB ? pin->bytes - at : 90 * MIB;
		for (char *from = pin->memory + at; left > 0;) {
			int64_t run = rh_host_pin_run(pin, from, left);
			assert_true(run > 0 && run <= left);
			for (int i = 0; i < fake->count; i++) {
				const char *first = fake->held[i].at, *end = first + fake->held[i].bytes;
				assert_true((from >= first && from + run <= end) || from >= end || from + run <= first);
			}
			from += run;
			left -= run;
		}
	}
}

static void test_pinning_goes_down_by_degrees(void **state)
{
	(void)state;
	char *memory = (char *)(uintptr_t)(1 << 30); /* never touched */
	const int64_t whole = INT64_C(300) * MIB;
	const struct {
		int64_t longest, most, pinned, piece;
	} cases[] = {{INT64_MAX, INT64_MAX, whole, whole},
	             {256 * MIB, INT64_MAX, whole, 256 * MIB},
	             {100 * MIB, INT64_MAX, whole, 64 * MIB},
	             {20 * MIB, INT64_MAX, whole, 16 * MIB},
	             {INT64_MAX, 200 * MIB, 192 * MIB, 64 * MIB},
	             {INT64_MAX, 40 * MIB, 32 * MIB, 16 * MIB},
	             {MIB, INT64_MAX, 0, 0}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct fake fake = {.base = {.ops = &pins}, .longest = cases[i].longest, .most = cases[i].most};
		struct rh_host_pin pin;
		rh_host_pin(&fake.base, memory, whole, &pin);
		assert_int_equal(pin.pinned_bytes, cases[i].pinned);
		assert_int_equal(fake.total, cases[i].pinned);
		if (cases[i].pinned)
			assert_int_equal(pin.piece_bytes, cases[i].piece);
		check_runs(&fake, &pin);
		rh_host_unpin(&pin);
		assert_int_equal(fake.total, 0);
		rh_host_unpin(&pin);
	}
}

static void test_a_device_that_cannot_pin_is_left_alone(void **state)
{
	(void)state;
	struct fake fake = {.base = {.ops = &plain}};
	struct rh_host_pin pin;
	static char memory[4096];
	rh_host_pin(&fake.base, memory, sizeof memory, &pin);
	assert_int_equal(pin.pinned_bytes, 0);
	assert_int_equal(rh_host_pin_run(&pin, memory, sizeof memory), sizeof memory);
	rh_host_unpin(&pin);
	rh_host_pin(&fake.base, NULL, 0, &pin);
	rh_host_unpin(&pin);
}

static long locked_kib(void)
{
	FILE *status = fopen("/proc/self/status", "re");
	char line[128];
	long kib = -1;
	while (status && fgets(line, sizeof line, status))
		(void)sscanf(line, "VmLck: %ld kB", &kib);
	if (status)
		fclose(status);
	return kib;
}

static void test_memory_of_a_device_that_cannot_pin_is_locked(void **state)
{
	(void)state;
	struct fake fake = {.base = {.ops = &plain}};
	struct rh_host_pin pin;
	struct rh_arena memory;
	check_ok(rh_host_reserve(4 * MIB, "a test", &memory));
	long before = locked_kib();
	rh_host_pin(&fake.base, memory.base, memory.capacity, &pin);
	int is_locked = pin.is_locked;
	long meanwhile = locked_kib();
	rh_host_unpin(&pin);
	if (is_locked && meanwhile == before)
		check_skip("locked memory: this build's mlock does nothing (sanitizers)");
	assert_int_equal(meanwhile - before, is_locked ? 4 << 10 : 0);
	assert_int_equal(locked_kib(), before);
	rh_host_release(&memory);
	if (!is_locked)
		check_skip("locked memory: ulimit -l is below 4 MiB");
}

static void test_memory_that_cannot_be_locked_is_left_as_it_is(void **state)
{
	(void)state;
	struct fake fake = {.base = {.ops = &plain}};
	struct rh_host_pin pin;
	struct rh_arena memory;
	check_ok(rh_host_reserve_addresses(4 * MIB, "a test", &memory));
	long before = locked_kib();
	rh_host_pin(&fake.base, memory.base, memory.capacity, &pin);
	assert_int_equal(locked_kib(), before);
	assert_true(rh_host_pin_has(&pin, memory.base));
	rh_host_unpin(&pin);
	rh_host_release(&memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_pinning_goes_down_by_degrees),
	        cmocka_unit_test(test_a_device_that_cannot_pin_is_left_alone),
	        cmocka_unit_test(test_memory_of_a_device_that_cannot_pin_is_locked),
	        cmocka_unit_test(test_memory_that_cannot_be_locked_is_left_as_it_is),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
