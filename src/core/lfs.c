#include "core/lfs.h"

#include "core/file.h"

#include <stdlib.h>
#include <string.h>

enum { POINTER_MOST = 1024 }; /* by git-lfs's own rule */

int rh_lfs_refuse(const char *path, const void *bytes, size_t length)
{
	static const char magic[] = "version https://git-lfs.github.com/spec/";
	char text[POINTER_MOST];
	if (length < sizeof magic - 1 || length >= sizeof text || memcmp(bytes, magic, sizeof magic - 1))
		return 0;
	memcpy(text, bytes, length);
	text[length] = 0;
	const char *size = strstr(text, "\nsize ");
	long long true_bytes = size ? strtoll(size + 6, NULL, 10) : 0;
	if (true_bytes > 0)
		return rh_fail(
		        -EINVAL,
		        "%s: a git-lfs pointer stands in place of the file (%lld bytes): run git lfs pull in its directory, or fetch it "
		        "with hf download",
		        path, true_bytes);
	return rh_fail(-EINVAL, "%s: a git-lfs pointer stands in place of the file: run git lfs pull in its directory, or hf download",
	               path);
}

int rh_lfs_refuse_file(const struct rh_file_in *file)
{
	char bytes[POINTER_MOST];
	int64_t length = rh_file_length(file);
	if (length >= POINTER_MOST)
		return 0;
	int rc = rh_file_read(file, 0, bytes, (size_t)length);
	return rc ? rc : rh_lfs_refuse(rh_file_path(file), bytes, (size_t)length);
}
