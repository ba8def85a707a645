#include "config/hardware.h"

#include "config/fields_internal.h"
#include "core/alloc.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { HARDWARE_POINTS_MOST = 4096 };

static const char *const product_names[RH_PRODUCTS] = {"f32", "bf16", "f16", "f16_f16", "f8"};

const char *rh_product_name(enum rh_product product)
{
	return product_names[product];
}

static const char *const form_names[RH_GEMM_FORMS] = {"", "nn", "nt", "tn", "tt"};

const char *rh_gemm_form_name(enum rh_gemm_form form)
{
	return form_names[form];
}

struct hardware_draft {
	struct rh_hardware hardware;
	yaml_node_t *device, *link, *pcie_switch, *host, *nvme;
};
struct device_draft {
	struct rh_hardware_device device;
	yaml_node_t *peaks, *gemm, *ops;
};
struct host_draft {
	struct rh_hardware_host host;
	yaml_node_t *optimizer;
};
struct gemm_draft {
	struct rh_hardware_gemm point;
	char *product, *form;
};
struct op_draft {
	struct rh_hardware_op op;
	char *product;
};

#define RATE(key, type, member)                                                                                                            \
	{                                                                                                                                  \
		key, FIELD_REAL, offsetof(struct type, member), 0, 1e21                                                                    \
	}
#define SIZE(key, type, member)                                                                                                            \
	{                                                                                                                                  \
		key, FIELD_BYTES, offsetof(struct type, member), 0, 0x1p60                                                                 \
	}
#define COUNT(key, type, member, least, most)                                                                                              \
	{                                                                                                                                  \
		key, FIELD_COUNT, offsetof(struct type, member), least, most                                                               \
	}
#define TEXT(key, type, member)                                                                                                            \
	{                                                                                                                                  \
		key, FIELD_TEXT, offsetof(struct type, member), 0, 0                                                                       \
	}
#define NODE(key, type, member)                                                                                                            \
	{                                                                                                                                  \
		key, FIELD_NODE, offsetof(struct type, member), 0, 0                                                                       \
	}

static const struct config_field hardware_fields[] = {
        TEXT("name", hardware_draft, hardware.name),
        TEXT("source", hardware_draft, hardware.source),
        COUNT("devices", hardware_draft, hardware.devices, 1, 64),
        COUNT("devices_most", hardware_draft, hardware.devices_most, 1, 64),
        NODE("device", hardware_draft, device),
        NODE("link", hardware_draft, link),
        NODE("switch", hardware_draft, pcie_switch),
        NODE("host", hardware_draft, host),
        NODE("nvme", hardware_draft, nvme),
};
static const struct config_field device_fields[] = {
        TEXT("name", device_draft, device.name),
        TEXT("source", device_draft, device.source),
        SIZE("memory", device_draft, device.memory),
        SIZE("reserved", device_draft, device.reserved),
        COUNT("on_host_cores", device_draft, device.on_host_cores, 0, 1),
        {"one_core", FIELD_REAL, offsetof(struct device_draft, device.one_core), 0, 1},
        {"halves", FIELD_REAL, offsetof(struct device_draft, device.halves), 0, 2},
        NODE("peaks", device_draft, peaks),
        NODE("gemm", device_draft, gemm),
        NODE("ops", device_draft, ops),
        RATE("other_flops_per_s", device_draft, device.other_flops_per_s),
        RATE("memory_bytes_per_s", device_draft, device.memory_bytes_per_s),
        RATE("launch_s", device_draft, device.launch_s),
};
static const struct config_field peak_fields[RH_PRODUCTS] = {
        RATE("f32", rh_hardware_device, peak[RH_PRODUCT_F32]), RATE("bf16", rh_hardware_device, peak[RH_PRODUCT_BF16]),
        RATE("f16", rh_hardware_device, peak[RH_PRODUCT_F16]), RATE("f16_f16", rh_hardware_device, peak[RH_PRODUCT_F16_F16]),
        RATE("f8", rh_hardware_device, peak[RH_PRODUCT_F8]),
};
static const struct config_field gemm_fields[] = {
        TEXT("product", gemm_draft, product),       TEXT("form", gemm_draft, form),
        COUNT("m", gemm_draft, point.m, 1, 0x1p40), COUNT("n", gemm_draft, point.n, 1, 0x1p40),
        COUNT("k", gemm_draft, point.k, 1, 0x1p40), {"fraction", FIELD_REAL, offsetof(struct gemm_draft, point.fraction), 1e-6, 2},
};
static const struct config_field op_fields[] = {
        TEXT("op", op_draft, op.op),
        TEXT("product", op_draft, product),
        COUNT("size", op_draft, op.size, 0, 0x1p40),
        RATE("flops_per_s", op_draft, op.flops_per_s),
        RATE("bytes_per_s", op_draft, op.bytes_per_s),
};
static const struct config_field link_fields[] = {
        RATE("up_bytes_per_s", rh_hardware_link, up_bytes_per_s),
        RATE("down_bytes_per_s", rh_hardware_link, down_bytes_per_s),
        RATE("both_bytes_per_s", rh_hardware_link, both_bytes_per_s),
        RATE("latency_s", rh_hardware_link, latency_s),
        TEXT("source", rh_hardware_link, source),
        COUNT("devices", rh_hardware_link, devices, 0, 64),
};
static const struct config_field host_fields[] = {
        SIZE("ram", host_draft, host.ram),
        RATE("dram_bytes_per_s", host_draft, host.dram_bytes_per_s),
        COUNT("cores", host_draft, host.cores, 0, 4096),
        NODE("optimizer", host_draft, optimizer),
        TEXT("source", host_draft, host.source),
};
static const struct config_field optimizer_fields[RH_LAYOUTS] = {
        RATE("split", rh_hardware_host, optimizer_bytes_per_s[RH_LAYOUT_SPLIT]),
        RATE("plain", rh_hardware_host, optimizer_bytes_per_s[RH_LAYOUT_PLAIN]),
        RATE("split8", rh_hardware_host, optimizer_bytes_per_s[RH_LAYOUT_SPLIT8]),
};
static const struct config_field nvme_fields[] = {
        SIZE("bytes", rh_hardware_nvme, bytes),
        RATE("read_bytes_per_s", rh_hardware_nvme, read_bytes_per_s),
        RATE("write_bytes_per_s", rh_hardware_nvme, write_bytes_per_s),
        RATE("mixed_bytes_per_s", rh_hardware_nvme, mixed_bytes_per_s),
        TEXT("source", rh_hardware_nvme, source),
};
#define FIELDS(table) table, sizeof table / sizeof table[0]

static int find_product(struct config_tree *tree, const yaml_node_t *at, const char *name, enum rh_product *out)
{
	for (int p = 0; name && p < RH_PRODUCTS; p++)
		if (!strcmp(product_names[p], name)) {
			*out = (enum rh_product)p;
			return 0;
		}
	return config_tree_fail(tree, at, "product: expected f32, bf16, f16, f16_f16 or f8");
}

static int find_form(struct config_tree *tree, const yaml_node_t *at, const char *name, enum rh_gemm_form *out)
{
	for (int f = RH_GEMM_ANY; f < RH_GEMM_FORMS; f++)
		if (!strcmp(form_names[f], name ? name : "")) {
			*out = (enum rh_gemm_form)f;
			return 0;
		}
	return config_tree_fail(tree, at, "form: expected nn, nt, tn or tt: which of a and b are transposed");
}

static int read_gemm(struct config_tree *tree, const yaml_node_t *node, struct rh_hardware_device *device)
{
	struct gemm_draft draft = {0};
	int rc = config_fields_read(tree, node, FIELDS(gemm_fields), &draft);
	if (!rc)
		rc = find_product(tree, node, draft.product, &draft.point.product);
	if (!rc)
		rc = find_form(tree, node, draft.form, &draft.point.form);
	rh_free(draft.product);
	rh_free(draft.form);
	if (!rc && (!draft.point.m || !draft.point.n || !draft.point.k || draft.point.fraction <= 0))
		rc = config_tree_fail(tree, node, "a measured product needs product, m, n, k and fraction");
	if (!rc)
		rc = rh_grow(&device->gemm, &device->gemm_capacity, device->gemms + 1, sizeof *device->gemm);
	if (!rc)
		device->gemm[device->gemms++] = draft.point;
	return rc;
}

static int read_op(struct config_tree *tree, const yaml_node_t *node, struct rh_hardware_device *device)
{
	struct op_draft draft = {0};
	int rc = config_fields_read(tree, node, FIELDS(op_fields), &draft);
	if (!rc)
		rc = find_product(tree, node, draft.product, &draft.op.product);
	rh_free(draft.product);
	if (!rc && !draft.op.op)
		rc = config_tree_fail(tree, node, "op: which one?");
	if (!rc)
		rc = rh_grow(&device->op, &device->op_capacity, device->ops + 1, sizeof *device->op);
	if (rc)
		rh_free(draft.op.op);
	else
		device->op[device->ops++] = draft.op;
	return rc;
}

/* A list of mappings, each read by `read`. */
static int read_list(struct config_tree *tree, const yaml_node_t *list, const char *name, struct rh_hardware_device *device,
                     int (*read)(struct config_tree *, const yaml_node_t *, struct rh_hardware_device *))
{
	int rc = 0;
	if (!list)
		return 0;
	if (list->type != YAML_SEQUENCE_NODE)
		return config_tree_fail(tree, list, "%s: expected a list", name);
	const yaml_node_item_t *item = list->data.sequence.items.start, *end = list->data.sequence.items.top;
	if (end - item > HARDWARE_POINTS_MOST)
		return config_tree_fail(tree, list, "%s: more than %d entries", name, HARDWARE_POINTS_MOST);
	for (; !rc && item < end; item++)
		rc = read(tree, yaml_document_get_node(&tree->document, *item), device);
	return rc;
}

static int read_device(struct config_tree *tree, const yaml_node_t *node, struct rh_hardware_device *out)
{
	struct device_draft draft = {0};
	int rc = config_fields_read(tree, node, FIELDS(device_fields), &draft);
	*out = draft.device;
	if (!rc && draft.peaks)
		rc = config_fields_read(tree, draft.peaks, FIELDS(peak_fields), out);
	if (rc)
		return rc;
	rc = read_list(tree, draft.gemm, "gemm", out, read_gemm);
	if (rc)
		return rc;
	rc = read_list(tree, draft.ops, "ops", out, read_op);
	if (!rc && out->reserved > out->memory)
		rc = config_tree_fail(tree, node, "reserved: more than memory");
	return rc;
}

static int read_host(struct config_tree *tree, const yaml_node_t *node, struct rh_hardware_host *out)
{
	struct host_draft draft = {0};
	int rc = config_fields_read(tree, node, FIELDS(host_fields), &draft);
	*out = draft.host;
	return rc || !draft.optimizer ? rc : config_fields_read(tree, draft.optimizer, FIELDS(optimizer_fields), out);
}

static int fill(struct config_tree *tree, const yaml_node_t *root, void *to)
{
	struct rh_hardware *out = to;
	struct hardware_draft draft = {.hardware.devices = 1};
	int rc = config_fields_read(tree, root, FIELDS(hardware_fields), &draft);
	*out = draft.hardware;
	if (!rc && !draft.device)
		rc = config_tree_fail(tree, root, "device: a profile must say what computes");
	if (!rc)
		rc = read_device(tree, draft.device, &out->device);
	if (!rc && draft.link)
		rc = config_fields_read(tree, draft.link, FIELDS(link_fields), &out->link);
	if (!rc && draft.pcie_switch)
		rc = config_fields_read(tree, draft.pcie_switch, FIELDS(link_fields), &out->pcie_switch);
	if (!rc && draft.host)
		rc = read_host(tree, draft.host, &out->host);
	if (!rc && draft.nvme)
		rc = config_fields_read(tree, draft.nvme, FIELDS(nvme_fields), &out->nvme);
	if (!rc && !out->name)
		rc = (out->name = rh_strdup(tree->path)) ? 0 : -ENOMEM;
	return rc;
}

int rh_hardware_parse(const char *bytes, size_t length, const char *path, struct rh_hardware *out)
{
	*out = (struct rh_hardware){0};
	int rc = config_document_parse(bytes, length, path, fill, out);
	if (rc)
		rh_hardware_free(out);
	return rc;
}

int rh_hardware_read(const char *path, struct rh_hardware *out)
{
	*out = (struct rh_hardware){0};
	int rc = config_document_read(path, fill, out);
	if (rc)
		rh_hardware_free(out);
	return rc;
}

void rh_hardware_free(struct rh_hardware *hardware)
{
	struct rh_hardware_device *device = &hardware->device;
	for (size_t i = 0; i < device->ops; i++)
		rh_free(device->op[i].op);
	rh_free(device->op);
	rh_free(device->gemm);
	rh_free(device->name);
	rh_free(device->source);
	rh_free(hardware->link.source);
	rh_free(hardware->pcie_switch.source);
	rh_free(hardware->host.source);
	rh_free(hardware->nvme.source);
	rh_free(hardware->name);
	rh_free(hardware->source);
	*hardware = (struct rh_hardware){0};
}

static double known_fraction(const struct rh_hardware_device *device, struct rh_gemm_shape shape)
{
	double sum = 0, weights = 0;
	for (size_t i = 0; i < device->gemms; i++) {
		const struct rh_hardware_gemm *point = &device->gemm[i];
		if (point->product != shape.product || (shape.form && point->form != shape.form))
			continue;
		double x = log2(shape.m / (double)point->m), y = log2(shape.n / (double)point->n), z = log2(shape.k / (double)point->k);
		double distance = x * x + y * y + z * z;
		if (distance < 1e-9)
			return point->fraction;
		sum += point->fraction / (distance * distance);
		weights += 1 / (distance * distance);
	}
	return weights > 0 ? sum / weights : 0;
}

double rh_hardware_gemm_fraction(const struct rh_hardware_device *device, struct rh_gemm_shape shape)
{
	for (int other = 0; other < 2; other++) {
		struct rh_gemm_shape any = shape;
		any.form = RH_GEMM_ANY;
		double fraction = known_fraction(device, shape);
		fraction = fraction > 0 ? fraction : known_fraction(device, any);
		if (fraction > 0 || shape.product == RH_PRODUCT_F32)
			return fraction > 0 ? fraction : 1;
		shape.product = RH_PRODUCT_BF16;
	}
	return 1;
}

double rh_hardware_peak(const struct rh_hardware_device *device, enum rh_product product)
{
	double peak = device->peak[product];
	if (!(peak > 0) && product == RH_PRODUCT_F16_F16)
		peak = device->peak[RH_PRODUCT_F16];
	if (!(peak > 0) && (product == RH_PRODUCT_F16 || product == RH_PRODUCT_F16_F16))
		peak = device->peak[RH_PRODUCT_BF16];
	return peak;
}

static double between(double low, double high, double share)
{
	return share > 0 && low > 0 && high > 0 ? exp(log(low) + share * (log(high) - log(low))) : share < 0.5 ? low : high;
}

int rh_hardware_op_rates(const struct rh_hardware_device *device, const char *op, enum rh_product product, double size, double *flops_per_s,
                         double *bytes_per_s)
{
	const struct rh_hardware_op *below = NULL, *above = NULL;
	for (size_t i = 0; i < device->ops; i++) {
		const struct rh_hardware_op *known = &device->op[i];
		double at = (double)known->size;
		if (known->product != product || strcmp(known->op, op))
			continue;
		if (at <= size && (!below || at > (double)below->size))
			below = known;
		if (at > size && (!above || at < (double)above->size))
			above = known;
	}
	if (!below && !above)
		return 0;
	if (!above || !below || !below->size)
		above = below = above && (!below || !below->size) ? above : below;
	double share = above == below ? 0 : log(size / (double)below->size) / log((double)above->size / (double)below->size);
	*flops_per_s = between(below->flops_per_s, above->flops_per_s, share);
	*bytes_per_s = between(below->bytes_per_s, above->bytes_per_s, share);
	return 1;
}
