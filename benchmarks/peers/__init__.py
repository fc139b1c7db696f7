"""Our engine beside llama.cpp, onnxruntime-genai and CTranslate2: the same checkpoint, in one run."""
