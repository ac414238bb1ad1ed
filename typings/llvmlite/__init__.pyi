from llvmlite import binding as binding
