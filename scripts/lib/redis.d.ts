export interface RedisServer {
  url: string;
  host: string;
  port: number;
  pid: number;
  /** Its working folder. */
  dir: string;
  /** Ends it in order. */
  stop(): Promise<void>;
  /** Ends it by SIGKILL. */
  kill(): Promise<void>;
}

export interface RedisOptions {
  /** Default: a free one. */
  port?: number;
  /** Working folder; default: a temporary one that is removed at stop. */
  dir?: string;
  /** Further settings, such as `['--maxmemory', '3mb']`. */
  args?: string[];
}

/** Starts a Redis server on 127.0.0.1, without persistence, that ends with this process. */
export function startRedis(options?: RedisOptions): Promise<RedisServer>;

/** The path of a Redis server program; installs one by apt where there is none and it may. */
export function ensureRedisServer(): Promise<string>;

/** The path of a Redis server program that is there already. */
export function findRedisServer(): string | undefined;

/** Any Redis for a person to try things on; `how` says in words which one it is. */
export function findRedis(): Promise<{ how: string; url: string; stop(): Promise<void> }>;
