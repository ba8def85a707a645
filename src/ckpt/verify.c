#include "ckpt/verify.h"

#include "ckpt/safetensors.h"
#include "core/alloc.h"
#include "core/lfs.h"
#include "core/log.h"
#include "core/text.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEX_SHA1 = 40, HEX_SHA256 = 64, PIECE = 1 << 18 };

static int ends_in(const char *name, const char *suffix)
{
	size_t length = strlen(name), end = strlen(suffix);
	return length >= end && !strcmp(name + length - end, suffix);
}

static int is_weights(const char *name)
{
	return ends_in(name, ".safetensors") || ends_in(name, ".gguf");
}

/* Files that make a model, an adapter or a tokenizer; not a run's own. */
static int belongs(const char *name)
{
	static const char *const others[] = {"config.json",
	                                     "adapter_config.json",
	                                     "tokenizer.json",
	                                     "tokenizer_config.json",
	                                     "vocab.json",
	                                     "vocab.txt",
	                                     "special_tokens_map.json",
	                                     "added_tokens.json",
	                                     "merges.txt",
	                                     "tokenizer.model",
	                                     "chat_template.jinja",
	                                     "chat_template.json",
	                                     "generation_config.json",
	                                     "model.safetensors.index.json"};
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (!strcmp(name, others[i]))
			return 1;
	return is_weights(name);
}

/* The hub names large files by SHA-256, small ones as git names blobs: SHA-1 with a header. */
static int digest(const struct rh_file_in *file, size_t hex_length, char hex[HEX_SHA256 + 1])
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	char *piece = rh_alloc(PIECE, 1), header[40];
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned bytes = 0;
	int rc = context && piece ? 0 : -ENOMEM;
	if (!rc && !EVP_DigestInit_ex(context, hex_length == HEX_SHA1 ? EVP_sha1() : EVP_sha256(), NULL))
		rc = rh_fail(-ENOSYS, "%s: libcrypto has no such checksum here", rh_file_path(file));
	if (!rc && hex_length == HEX_SHA1) {
		int length = snprintf(header, sizeof header, "blob %lld", (long long)rh_file_length(file));
		EVP_DigestUpdate(context, header, (size_t)length + 1);
	}
	for (int64_t at = 0; !rc && at < rh_file_length(file); at += PIECE) {
		size_t now = rh_file_length(file) - at < PIECE ? (size_t)(rh_file_length(file) - at) : PIECE;
		rc = rh_file_read(file, at, piece, now);
		if (!rc)
			EVP_DigestUpdate(context, piece, now);
	}
	if (!rc)
		EVP_DigestFinal_ex(context, sum, &bytes);
	for (unsigned i = 0; !rc && i < bytes; i++)
		snprintf(hex + 2 * (size_t)i, 3, "%02x", sum[i]);
	EVP_MD_CTX_free(context);
	rh_free(piece);
	return rc;
}

int rh_verify_write_sums(const char *dir)
{
	struct rh_names names;
	struct rh_text text = {0};
	int rc = rh_dir_list(dir, &names);
	if (!rc)
		rc = rh_text_printf(&text, "# written by Roundhouse\n");
	for (size_t i = 0; !rc && i < names.count; i++) {
		struct rh_file_in *file = NULL;
		char hex[HEX_SHA256 + 1];
		if (!belongs(names.name[i]))
			continue;
		char *path = rh_path_join(dir, names.name[i]);
		rc = path ? rh_file_open(path, &file) : -ENOMEM;
		if (!rc)
			rc = digest(file, HEX_SHA256, hex);
		if (!rc)
			rc = rh_text_printf(&text, "%s  %s\n", hex, names.name[i]);
		rh_file_close(file);
		rh_free(path);
	}
	rh_names_free(&names);
	char *path = rc ? NULL : rh_path_join(dir, RH_SUMS_NAME);
	if (!rc)
		rc = path ? rh_file_write_whole(path, text.bytes ? text.bytes : "", text.length) : -ENOMEM;
	rh_free(path);
	rh_text_free(&text);
	return rc;
}

/* A sum's hexadecimal digits at the beginning of `text`, into `hex`: 40 or 64 of them, and none more. 1: there they are. */
static int take_hex(const char *text, char hex[HEX_SHA256 + 1])
{
	size_t digits = strspn(text, "0123456789abcdef");
	if (digits != HEX_SHA1 && digits != HEX_SHA256)
		return 0;
	memcpy(hex, text, digits);
	hex[digits] = 0;
	return 1;
}

/* snapshots/.../model.safetensors is a link to ../../blobs/SUM. */
static int sum_of_link(const char *path, char hex[HEX_SHA256 + 1])
{
	char target[512];
	ssize_t length = readlink(path, target, sizeof target - 1);
	target[length > 0 ? length : 0] = 0;
	const char *blob = strstr(target, "blobs/");
	return blob && take_hex(blob + 6, hex) && strlen(blob + 6) == strlen(hex);
}

/* Line 2 of .cache/huggingface/download/NAME.metadata, which downloads with a local directory leave. 1, 0 or negative errno. */
static int sum_of_etag(const char *dir, const char *name, char hex[HEX_SHA256 + 1])
{
	struct rh_text path = {0};
	struct rh_bytes bytes = {0};
	int rc = rh_text_printf(&path, "%s/.cache/huggingface/download/%s.metadata", dir, name), found = 0;
	if (!rc && rh_file_exists(path.bytes)) {
		rc = rh_file_load(path.bytes, &bytes);
		const char *second = rc ? NULL : strchr(bytes.bytes, '\n');
		found = second && take_hex(second + 1 + (second[1] == '"'), hex);
		rh_bytes_free(&bytes);
	}
	rh_text_free(&path);
	return rc ? rc : found;
}

/* A line "SUM  NAME" or "SUM *NAME". */
static int sum_of_list(const struct rh_bytes *sums, const char *name, char hex[HEX_SHA256 + 1])
{
	for (const char *line = sums->bytes; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		const char *at = line + HEX_SHA256;
		size_t length = strlen(name);
		if (take_hex(line, hex) && strlen(hex) == HEX_SHA256 && at[0] == ' ' && (at[1] == ' ' || at[1] == '*') &&
		    !strncmp(at + 2, name, length) && (at[2 + length] == '\n' || at[2 + length] == '\r' || !at[2 + length]))
			return 1;
	}
	return 0;
}

/* A clone keeps each file that a git-lfs pointer names below .git/lfs/objects, by its SHA-256. 1: this file is there; 0: it is not, and has
 * no weights, or there is no such directory; negative errno: it has weights and is not there. */
static int look_in_lfs(const char *dir, const char *path, const struct rh_file_in *file)
{
	struct rh_text object = {0};
	char hex[HEX_SHA256 + 1];
	int known = 0, rc = rh_text_printf(&object, "%s/.git/lfs/objects", dir);
	if (rc || !rh_dir_exists(object.bytes))
		goto out;
	rc = digest(file, HEX_SHA256, hex);
	if (!rc)
		rc = rh_text_printf(&object, "/%.2s/%.2s/%s", hex, hex + 2, hex);
	known = !rc && rh_file_exists(object.bytes);
	if (!rc && !known && is_weights(path))
		rc = rh_fail(
		        -EINVAL,
		        "verify_base: %s: its SHA-256 is %s, of which git-lfs keeps no file in %s/.git/lfs/objects: the file was damaged "
		        "or changed; run git lfs pull, or download it again",
		        path, hex, dir);
out:
	rh_text_free(&object);
	return rc ? rc : known;
}

/* 1: the file matches the recorded sum; 0: none is recorded. */
static int verify_file(const char *dir, const char *name, const struct rh_bytes *sums)
{
	char recorded[HEX_SHA256 + 1], found[HEX_SHA256 + 1];
	struct rh_file_in *file = NULL;
	char *path = rh_path_join(dir, name);
	int rc = path ? rh_file_open(path, &file) : -ENOMEM;
	if (!rc)
		rc = rh_lfs_refuse_file(file);
	int known = rc ? 0 : sum_of_link(path, recorded);
	if (!rc && !known)
		known = sum_of_etag(dir, name, recorded);
	if (known < 0)
		rc = known;
	if (!rc && !known && sums->bytes)
		known = sum_of_list(sums, name, recorded);
	if (!rc && known) {
		rc = digest(file, strlen(recorded), found);
		if (!rc && strcmp(recorded, found))
			rc = rh_fail(
			        -EINVAL,
			        "verify_base: %s: its SHA-%s is %s, recorded is %s: the file was damaged or changed; download it again",
			        path, strlen(recorded) == HEX_SHA1 ? "1 as git makes it" : "256", found, recorded);
	}
	if (!rc && !known) {
		known = look_in_lfs(dir, path, file);
		rc = known < 0 ? known : 0;
	}
	rh_file_close(file);
	if (!rc && !known && ends_in(name, ".safetensors")) {
		struct rh_safetensors *tensors;
		rc = rh_safetensors_open(path, &tensors);
		if (!rc) {
			known = rh_safetensors_verify(tensors);
			rc = known < 0 ? known : 0;
			rh_safetensors_close(tensors);
		}
	}
	rh_free(path);
	return rc ? rc : known;
}

int rh_verify_base(const char *path)
{
	struct rh_names names = {0};
	struct rh_bytes sums = {0};
	char *dir = rh_strdup(path), *list = NULL;
	const char *single = NULL;
	int rc = dir ? 0 : -ENOMEM, matching = 0, unknown = 0, weights = 0;
	if (!rc && !rh_dir_exists(path)) { /* a .gguf file */
		char *slash = strrchr(dir, '/');
		single = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
		snprintf(slash ? slash : dir, 2, "%s", slash ? "" : ".");
	}
	if (!rc && !(list = rh_path_join(*dir ? dir : "/", RH_SUMS_NAME)))
		rc = -ENOMEM;
	if (!rc && rh_file_exists(list))
		rc = rh_file_load(list, &sums);
	if (!rc)
		rc = rh_dir_list(*dir ? dir : "/", &names);
	for (size_t i = 0; !rc && i < names.count; i++) {
		if (single ? strcmp(names.name[i], single) : !belongs(names.name[i]))
			continue;
		int known = verify_file(*dir ? dir : "/", names.name[i], &sums);
		rc = known < 0 ? known : 0;
		matching += known > 0;
		unknown += known == 0;
		weights += known > 0 && is_weights(names.name[i]);
	}
	if (!rc && !weights)
		rc = rh_fail(-EINVAL,
		             "verify_base: %s: no sum of its weights is recorded: neither is it the hub's cache (blobs/), nor are there "
		             ".cache/huggingface/download, .git/lfs/objects or " RH_SUMS_NAME "; leave the key out, or put " RH_SUMS_NAME
		             " beside it",
		             path);
	if (!rc)
		rh_note("%s: %d files match their recorded checksums%s", path, matching, unknown ? "; of others none is recorded" : "");
	rh_names_free(&names);
	rh_bytes_free(&sums);
	rh_free(list);
	rh_free(dir);
	return rc;
}
