export interface PostgresServer {
  host: string;
  port: number;
  user: string;
  database: string;
  stop(): Promise<void>;
}

/** Starts a PostgreSQL on 127.0.0.1 that asks for no password and ends with this process; installs one by apt where there is none and it may. */
export function startPostgres(): Promise<PostgresServer>;
