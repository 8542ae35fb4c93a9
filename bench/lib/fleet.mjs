import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const WORKER = fileURLToPath(new URL('./worker.mjs', import.meta.url));

/** One child process with one adapter instance; `call` sends it a request and awaits the answer. */
export async function startWorker(adapterModule, redisUrl) {
  const child = fork(WORKER, [adapterModule, redisUrl], { execArgv: ['--expose-gc'], serialization: 'advanced' });
  const pending = new Map();
  let next = 1;
  const ready = new Promise((resolve, reject) => pending.set(0, { resolve, reject }));
  child.on('message', ({ id, result, error }) => {
    const waiter = pending.get(id);
    pending.delete(id);
    if (error) waiter?.reject(new Error(error));
    else waiter?.resolve(result);
  });
  child.on('exit', (code, signal) => {
    for (const { reject } of pending.values()) reject(new Error(`worker ended (${signal ?? code})`));
    pending.clear();
  });
  await ready;
  return {
    call(name, args = {}) {
      return new Promise((resolve, reject) => {
        const id = next++;
        pending.set(id, { resolve, reject });
        child.send({ id, name, args });
      });
    },
    /** Sudden death, as by an out-of-memory kill. */
    kill() {
      child.kill('SIGKILL');
      return new Promise((resolve) =>
        child.exitCode !== null || child.signalCode ? resolve() : child.once('exit', resolve),
      );
    },
    /** Orderly end; killed when the adapter does not close within two seconds. */
    async stop() {
      if (child.exitCode !== null || child.signalCode) return;
      const closing = this.call('close').catch(() => {});
      await Promise.race([closing, new Promise((resolve) => setTimeout(resolve, 2000))]);
      await this.kill();
    },
  };
}
