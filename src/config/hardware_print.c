/* A profile as YAML, in the order in which people read it. */
#include "config/hardware.h"

#include "core/text.h"

#include <inttypes.h>
#include <stdarg.h>

/* Collects the first fault, so that each line need not. */
struct printer {
	struct rh_text *out;
	int rc;
};

static void put(struct printer *to, const char *text)
{
	if (!to->rc)
		to->rc = rh_text_printf(to->out, "%s", text);
}

static void put_text(struct printer *to, const char *key, const char *text, const char *after)
{
	if (!text)
		return;
	if (!to->rc)
		to->rc = rh_text_printf(to->out, "%s: \"", key);
	for (; *text && !to->rc; text++) {
		unsigned char c = (unsigned char)*text;
		to->rc = c == '"' || c == '\\' ? rh_text_printf(to->out, "\\%c", c)
		         : c < 0x20            ? rh_text_printf(to->out, "\\x%02x", c)
		                               : rh_text_append(to->out, text, 1);
	}
	if (!to->rc)
		to->rc = rh_text_printf(to->out, "\"%s", after);
}

static void put_whole(struct printer *to, const char *key, int64_t value, const char *after)
{
	if (value && !to->rc)
		to->rc = rh_text_printf(to->out, "%s: %" PRId64 "%s", key, value, after);
}

/* Four digits say more than a rate is good for. */
static void put_rate(struct printer *to, const char *key, double value, const char *after)
{
	if (value > 0 && !to->rc)
		to->rc = rh_text_printf(to->out, "%s: %.4g%s", key, value, after);
}

static void print_device(struct printer *to, const struct rh_hardware_device *device)
{
	put(to, "device:\n");
	put_text(to, "  name", device->name, "\n");
	put_whole(to, "  memory", device->memory, "\n");
	put_whole(to, "  reserved", device->reserved, "\n");
	put_whole(to, "  on_host_cores", device->on_host_cores, "\n");
	put_rate(to, "  one_core", device->one_core, "\n");
	put_rate(to, "  halves", device->halves, "\n");
	put(to, "  peaks: {");
	const char *before = "";
	for (int p = 0; p < RH_PRODUCTS; p++)
		if (device->peak[p] > 0) {
			put(to, before);
			put_rate(to, rh_product_name((enum rh_product)p), device->peak[p], "");
			before = ", ";
		}
	put(to, "}\n");
	put(to, device->gemms ? "  gemm:\n" : "");
	for (size_t i = 0; i < device->gemms && !to->rc; i++) {
		const struct rh_hardware_gemm *point = &device->gemm[i];
		to->rc = rh_text_printf(to->out,
		                        "    - {product: %s, %s%s%sm: %" PRId64 ", n: %" PRId64 ", k: %" PRId64 ", fraction: %.4g}\n",
		                        rh_product_name(point->product), point->form ? "form: " : "", rh_gemm_form_name(point->form),
		                        point->form ? ", " : "", point->m, point->n, point->k, point->fraction);
	}
	put(to, device->ops ? "  ops:\n" : "");
	for (size_t i = 0; i < device->ops && !to->rc; i++) {
		const struct rh_hardware_op *op = &device->op[i];
		to->rc = rh_text_printf(to->out, "    - {op: %s, product: %s", op->op, rh_product_name(op->product));
		put_whole(to, ", size", op->size, "");
		put_rate(to, ", flops_per_s", op->flops_per_s, "");
		put_rate(to, ", bytes_per_s", op->bytes_per_s, "");
		put(to, "}\n");
	}
	put_rate(to, "  other_flops_per_s", device->other_flops_per_s, "\n");
	put_rate(to, "  memory_bytes_per_s", device->memory_bytes_per_s, "\n");
	put_rate(to, "  launch_s", device->launch_s, "\n");
	put_text(to, "  source", device->source, "\n");
}

static void print_link(struct printer *to, const char *key, const struct rh_hardware_link *link)
{
	if (!(link->up_bytes_per_s > 0) && !(link->down_bytes_per_s > 0) && !(link->both_bytes_per_s > 0) && !(link->latency_s > 0) &&
	    !link->devices)
		return;
	put(to, key);
	put_whole(to, "  devices", link->devices, "\n");
	put_rate(to, "  up_bytes_per_s", link->up_bytes_per_s, "\n");
	put_rate(to, "  down_bytes_per_s", link->down_bytes_per_s, "\n");
	put_rate(to, "  both_bytes_per_s", link->both_bytes_per_s, "\n");
	put_rate(to, "  latency_s", link->latency_s, "\n");
	put_text(to, "  source", link->source, "\n");
}

static void print_host(struct printer *to, const struct rh_hardware_host *host)
{
	static const struct {
		enum rh_state_layout layout;
		const char *key;
	} layouts[RH_LAYOUTS] = {{RH_LAYOUT_SPLIT, "    split"}, {RH_LAYOUT_PLAIN, "    plain"}, {RH_LAYOUT_SPLIT8, "    split8"}};
	int optimizer = 0;
	for (int l = 0; l < RH_LAYOUTS; l++)
		optimizer |= host->optimizer_bytes_per_s[l] > 0;
	if (!host->ram && !(host->dram_bytes_per_s > 0) && !host->cores && !optimizer)
		return;
	put(to, "host:\n");
	put_whole(to, "  ram", host->ram, "\n");
	put_rate(to, "  dram_bytes_per_s", host->dram_bytes_per_s, "\n");
	put_whole(to, "  cores", host->cores, "\n");
	put(to, optimizer ? "  optimizer:\n" : "");
	for (int l = 0; l < RH_LAYOUTS; l++)
		put_rate(to, layouts[l].key, host->optimizer_bytes_per_s[layouts[l].layout], "\n");
	put_text(to, "  source", host->source, "\n");
}

int rh_hardware_print(const struct rh_hardware *hardware, struct rh_text *out)
{
	struct printer to = {.out = out};
	put_text(&to, "name", hardware->name, "\n");
	put_text(&to, "source", hardware->source, "\n");
	put_whole(&to, "devices", hardware->devices, "\n");
	put_whole(&to, "devices_most", hardware->devices_most, "\n");
	print_device(&to, &hardware->device);
	print_link(&to, "link:\n", &hardware->link);
	print_link(&to, "switch:\n", &hardware->pcie_switch);
	print_host(&to, &hardware->host);
	if (hardware->nvme.bytes) {
		put(&to, "nvme:\n");
		put_whole(&to, "  bytes", hardware->nvme.bytes, "\n");
		put_rate(&to, "  read_bytes_per_s", hardware->nvme.read_bytes_per_s, "\n");
		put_rate(&to, "  write_bytes_per_s", hardware->nvme.write_bytes_per_s, "\n");
		put_rate(&to, "  mixed_bytes_per_s", hardware->nvme.mixed_bytes_per_s, "\n");
		put_text(&to, "  source", hardware->nvme.source, "\n");
	}
	return to.rc;
}
