/* The part of ONNX Runtime's C interface that the tests and benches here call.
 *
 * Its wheels come without headers. Names, places in the table and types are those of API version
 * 18, which later libraries keep; whatever stands between is skipped. Programs of users include
 * ONNX Runtime's own header instead. */
#ifndef FOREBAY_TESTS_ONNXRUNTIME_C_API_H
#define FOREBAY_TESTS_ONNXRUNTIME_C_API_H

#include <stddef.h>
#include <stdint.h>

#define ORT_API_VERSION 18

typedef struct OrtEnv OrtEnv;
typedef struct OrtStatus OrtStatus;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtValue OrtValue;

typedef enum OrtLoggingLevel {
  ORT_LOGGING_LEVEL_ERROR = 3,
  ORT_LOGGING_LEVEL_FATAL = 4,
} OrtLoggingLevel;
typedef enum OrtAllocatorType {
  OrtDeviceAllocator = 0,
  OrtArenaAllocator = 1,
} OrtAllocatorType;
typedef enum OrtMemType {
  OrtMemTypeDefault = 0,
} OrtMemType;
typedef enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
} ONNXTensorElementDataType;

typedef struct OrtAllocator {
  uint32_t version;
  void *(*Alloc)(struct OrtAllocator *self, size_t bytes);
  void (*Free)(struct OrtAllocator *self, void *block);
  const OrtMemoryInfo *(*Info)(const struct OrtAllocator *self);
  void *(*Reserve)(struct OrtAllocator *self, size_t bytes);
} OrtAllocator;

typedef struct OrtApi {
  void *skipped_0[2];
  const char *(*GetErrorMessage)(const OrtStatus *status);
  OrtStatus *(*CreateEnv)(OrtLoggingLevel level, const char *name, OrtEnv **env);
  void *skipped_4[4];
  OrtStatus *(*CreateSessionFromArray)(const OrtEnv *env, const void *model, size_t bytes,
                                       const OrtSessionOptions *options, OrtSession **session);
  OrtStatus *(*Run)(OrtSession *session, const OrtRunOptions *options,
                    const char *const *input_names, const OrtValue *const *inputs,
                    size_t input_count, const char *const *output_names, size_t output_count,
                    OrtValue **outputs);
  OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **options);
  void *skipped_11[37];
  OrtStatus *(*CreateTensorAsOrtValue)(OrtAllocator *allocator, const int64_t *shape, size_t rank,
                                       ONNXTensorElementDataType type, OrtValue **value);
  OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *memory, void *data,
                                               size_t bytes, const int64_t *shape, size_t rank,
                                               ONNXTensorElementDataType type, OrtValue **value);
  void *skipped_50[1];
  OrtStatus *(*GetTensorMutableData)(OrtValue *value, void **data);
  void *skipped_52[16];
  OrtStatus *(*CreateMemoryInfo)(const char *name, OrtAllocatorType type, int id, OrtMemType memory,
                                 OrtMemoryInfo **info);
  OrtStatus *(*CreateCpuMemoryInfo)(OrtAllocatorType type, OrtMemType memory, OrtMemoryInfo **info);
  void *skipped_70[1];
  OrtStatus *(*MemoryInfoGetName)(const OrtMemoryInfo *info, const char **name);
  void *skipped_72[20];
  void (*ReleaseEnv)(OrtEnv *env);
  void (*ReleaseStatus)(OrtStatus *status);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo *info);
  void (*ReleaseSession)(OrtSession *session);
  void (*ReleaseValue)(OrtValue *value);
  void *skipped_97[3];
  void (*ReleaseSessionOptions)(OrtSessionOptions *options);
  void *skipped_101[29];
  OrtStatus *(*AddSessionConfigEntry)(OrtSessionOptions *options, const char *key,
                                      const char *value);
  OrtStatus *(*CreateAllocator)(const OrtSession *session, const OrtMemoryInfo *info,
                                OrtAllocator **allocator);
  void *skipped_132[44];
  OrtStatus *(*RegisterAllocator)(OrtEnv *env, OrtAllocator *allocator);
  OrtStatus *(*UnregisterAllocator)(OrtEnv *env, const OrtMemoryInfo *info);
  void *skipped_178[16];
  OrtStatus *(*GetTensorMemoryInfo)(const OrtValue *value, const OrtMemoryInfo **info);
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

#endif
