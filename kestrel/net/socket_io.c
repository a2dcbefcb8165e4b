/* Reads and writes of non-blocking sockets: `kestrel/net/socket_io.py` for the compiled build.
 *
 * os.read and os.write release the interpreter's lock, which costs more than the rest of the call, and os.read shrinks
 * an object of the largest size (docs/decisions/0041-socket-calls-in-c.md). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <sys/socket.h>

enum { MAX_READ_BYTES = 64 * 1024, MAX_SEND_BYTES = 64 * 1024 };

static char received[MAX_READ_BYTES];

/* Return the descriptor in the first of two arguments, or -1 with an exception. */
static int descriptor_of(PyObject *const *arguments, Py_ssize_t count) {
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "expected 2 arguments, got %zd", count);
        return -1;
    }
    long descriptor = PyLong_AsLong(arguments[0]);
    if (descriptor >= 0 && descriptor <= INT_MAX) return (int)descriptor;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the descriptor is out of range");
    return -1;
}

static PyObject *receive(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    int descriptor = descriptor_of(arguments, count);
    if (descriptor < 0) return NULL;
    Py_ssize_t most = PyLong_AsSsize_t(arguments[1]);
    if (most < 0 || most > MAX_READ_BYTES) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the size is out of range");
        return NULL;
    }
    ssize_t size;
    do size = recv(descriptor, received, (size_t)most, MSG_DONTWAIT);
    while (size < 0 && errno == EINTR);
    return size < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyBytes_FromStringAndSize(received, size);
}

static PyObject *transmit(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    int descriptor = descriptor_of(arguments, count);
    if (descriptor < 0) return NULL;
    char *data;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(arguments[1], &data, &length)) return NULL;
    ssize_t size;
    if (length <= MAX_SEND_BYTES) {
        do size = send(descriptor, data, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (size < 0 && errno == EINTR);
    } else { /* other threads run meanwhile */
        Py_BEGIN_ALLOW_THREADS
        do size = send(descriptor, data, (size_t)length, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (size < 0 && errno == EINTR);
        Py_END_ALLOW_THREADS
    }
    return size < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromSsize_t(size);
}

static PyMethodDef METHODS[] = {
    {"receive", (PyCFunction)(void (*)(void))receive, METH_FASTCALL, NULL},
    {"send", (PyCFunction)(void (*)(void))transmit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "kestrel.net.socket_io", .m_size = 0, .m_methods = METHODS};

PyMODINIT_FUNC PyInit_socket_io(void) { return PyModule_Create(&MODULE); }
