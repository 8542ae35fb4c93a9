// n8n in queue mode: one main and two workers, which share PostgreSQL and a Redis.

import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { signIn, type N8nApi } from '../../../scripts/lib/n8n-api';
import { startN8n, type N8nServer } from '../../../scripts/lib/n8n-server';
import { installForN8n } from '../../../scripts/lib/package';
import { freePorts } from '../../../scripts/lib/ports';
import { startPostgres, type PostgresServer } from '../../../scripts/lib/postgres';
import { setup } from './n8n';

/** n8n gives a worker up that did not speak for so long: its job has failed then. Much shorter than by default. */
const BULL = { QUEUE_WORKER_LOCK_DURATION: '10000', QUEUE_WORKER_LOCK_RENEW_TIME: '3000', QUEUE_WORKER_STALLED_INTERVAL: '5000' };

export class QueueMode {
  readonly workers: N8nServer[] = [];
  api!: N8nApi;
  private readonly folder = mkdtempSync(join(tmpdir(), 'redis-lock-queue-'));
  private postgres!: PostgresServer;
  private main!: N8nServer;

  async start(): Promise<void> {
    this.postgres = await startPostgres();
    this.main = await startN8n({ install: setup.install, userFolder: await this.userFolder('main'), env: this.env() });
    this.api = await signIn(this.main.url);
    this.workers.push(...(await Promise.all([this.startWorker('one'), this.startWorker('two')])));
  }

  /** One that runs up to ten executions at a time. */
  async startWorker(name: string): Promise<N8nServer> {
    const [healthPort] = await freePorts(1);
    const env = { ...this.env(), QUEUE_HEALTH_CHECK_ACTIVE: 'true', QUEUE_HEALTH_CHECK_PORT: String(healthPort), N8N_CONCURRENCY_PRODUCTION_LIMIT: '10' };
    return await startN8n({ install: setup.install, userFolder: await this.userFolder(name), command: 'worker', env });
  }

  async stop(): Promise<void> {
    // One that was frozen does not hear it.
    for (const worker of this.workers) worker.signal('SIGCONT');
    await Promise.all([...this.workers, this.main].map(async (server) => await server?.kill()));
    await this.postgres?.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** With the package in it, as after its installation from the settings. */
  private async userFolder(name: string): Promise<string> {
    const folder = join(this.folder, name);
    mkdirSync(folder, { recursive: true });
    await installForN8n(folder, setup.tarball, setup.install.nodeHome);
    return folder;
  }

  private env(): Record<string, string> {
    const { host, port, user, database } = this.postgres;
    return {
      ...BULL,
      EXECUTIONS_MODE: 'queue',
      QUEUE_BULL_REDIS_HOST: setup.redis.host,
      QUEUE_BULL_REDIS_PORT: String(setup.redis.port),
      QUEUE_BULL_REDIS_DB: '3',
      DB_TYPE: 'postgresdb',
      DB_POSTGRESDB_HOST: host,
      DB_POSTGRESDB_PORT: String(port),
      DB_POSTGRESDB_DATABASE: database,
      DB_POSTGRESDB_USER: user,
    };
  }
}
